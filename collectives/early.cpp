// Early batches: rows are read and answered while the next ones are still on their way.
#include <algorithm>
#include <string>

#include "collectives/expert_end.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

std::uint32_t ExpertEnd::rows_ready(const BatchState& batch, std::size_t s) const noexcept {
  if (s >= batch.sources.size()) return 0;
  const BatchSource& source = batch.sources[s];
  const PairLink& link = *links_[source.attention_rank];
  const std::size_t rows = link.arrived(batch.rounds[s]).lines / (link.in().row_bytes / 64);
  return static_cast<std::uint32_t>(std::min<std::size_t>(rows, source.rows));
}

Status ExpertEnd::check_ready(const BatchState& batch, std::size_t s, std::uint32_t rows,
                              std::string_view function) const {
  const std::uint32_t all = batch.sources[s].rows;
  const std::uint32_t ready = rows_ready(batch, s);
  if (rows <= ready) return {};
  return transport::refuse({function, "rows of source " + std::to_string(s), std::to_string(rows),
                            rows > all ? "at most " + std::to_string(all)
                                       : "the " + std::to_string(ready) +
                                             " that have come (Channel::await_rows waits for more)",
                            context_.rank(), "ReceivePolicy::early"});
}

Result<bool> ExpertEnd::reply_rows(BatchState& batch, std::size_t s, std::uint32_t rows,
                                   const Outputs& outputs) {
  if (batch.is_grouped || s >= batch.sources.size()) {
    return transport::refuse({"reply_rows", "source",
                              batch.is_grouped ? "of a grouped batch" : std::to_string(s),
                              "0.." + std::to_string(batch.sources.size()) + " of a batch of rows",
                              context_.rank(), "ChannelConfig::layout"});
  }
  if (Status status = check_ready(batch, s, rows, "reply_rows"); !status) return status;
  const BatchSource& source = batch.sources[s];
  if (!source.pairs.empty()) {
    if (Status status = check_outputs(outputs, s); !status) return status;
  }
  reply_source(batch, s, rows_of(source, outputs), rows);
  if (batch.answered < batch.sources.size()) return false;
  release(batch);
  return true;
}

Status ExpertEnd::await_rows(const BatchState& batch, std::size_t s, std::uint32_t rows,
                             Timeout timeout) {
  if (s >= batch.sources.size() || rows > batch.sources[s].rows) {
    return transport::refuse({"await_rows", s >= batch.sources.size() ? "source" : "rows",
                              std::to_string(s >= batch.sources.size() ? s : rows),
                              s >= batch.sources.size()
                                  ? "below " + std::to_string(batch.sources.size())
                                  : "at most " + std::to_string(batch.sources[s].rows),
                              context_.rank(), "Batch::sources"});
  }
  if (rows_ready(batch, s) >= rows) return {};
  const GroupCore& group = *context_.group;
  const Deadline deadline{timeout, group.step_timeout};
  const auto step = [&]() -> Status {
    if (context_.state.load(std::memory_order_acquire) != ChannelState::open)
      return context_.check("await_rows");
    if (rows_ready(batch, s) >= rows) return {};
    blame(batch.sources[s].attention_rank);
    return peer_closed_[missing_] ? closed_by_peer("await_rows") : check_missing("await_rows");
  };
  const Status status = wait_until(worker_, group.wait, deadline, step, [&] { pump(); });
  count_wait(Clock::now() - deadline.start());
  if (status.code() != Code::timeout) return status;
  return timed_out("await_rows", batch.sources[s].operation, "attention");
}

}  // namespace m2n::collectives
