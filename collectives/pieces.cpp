// agree_pieces: the attention ranks of a channel agree on a maximum. Expert rank 0 is where they
// meet: it answers when all have asked, from any call that pumps its end.
#include <algorithm>
#include <string>

#include "collectives/attention_end.hpp"
#include "collectives/expert_end.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

// A call that has timed out leaves its question standing; the next call goes on with it.
Status AttentionEnd::try_agree(std::uint64_t pieces, std::uint64_t& agreed) {
  take_messages();
  if (asked_ && answered_ && asked_pieces_ != pieces) asked_ = answered_ = false;  // it came late
  if (asked_ && asked_pieces_ != pieces) {
    return transport::refuse(
        {"agree_pieces", "pieces", std::to_string(pieces),
         std::to_string(asked_pieces_) + ", as asked in the call that timed out", context_.rank(),
         "Channel::agree_pieces"});
  }
  if (!asked_) {
    ControlMessage question = message_of(ControlType::pieces);
    question.body[0] = pieces;
    asked_pieces_ = pieces;
    asked_ = links_[0]->send(question);
  }
  blame(0);
  if (!answered_)
    return peer_closed_[0] ? closed_by_peer("agree_pieces") : check_missing("agree_pieces");
  asked_ = answered_ = false;
  agreed = answer_;
  return {};
}

void AttentionEnd::on_message(std::uint32_t, const ControlMessage& message) {
  if (message.type != ControlType::pieces) return;
  answered_ = true;
  answer_ = message.body[0];
}

void ExpertEnd::on_message(std::uint32_t peer, const ControlMessage& message) {
  if (message.type != ControlType::pieces) return;
  most_pieces_ = std::max(most_pieces_, message.body[0]);
  asked_[peer] = true;
  if (std::all_of(asked_.begin(), asked_.end(), [](bool asked) { return asked; })) {
    for (std::uint32_t source = 0; source < links_.size(); ++source) {
      ControlMessage answer = message_of(ControlType::pieces);
      answer.body[0] = most_pieces_;
      // Always room: a source asks again only after it has taken the last answer.
      links_[source]->send(answer);
      asked_[source] = false;
    }
    most_pieces_ = 0;
  }
}

}  // namespace m2n::collectives
