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

Status ExpertEnd::reply_rows(BatchState& batch, std::size_t s, std::uint32_t rows,
                             const Outputs& outputs) {
  if (batch.is_grouped) {
    return transport::refuse({"reply_rows", "batch", "grouped", "rows", context_.rank(),
                              "ChannelConfig::layout or ReceivePolicy::as_rows"});
  }
  if (Status status = check_source(batch, s, "reply_rows"); !status) return status;
  if (batch.replies[s].done) return {};
  if (Status status = check_ready(batch, s, rows, "reply_rows"); !status) return status;
  const BatchSource& source = batch.sources[s];
  if (!source.pairs.empty()) {
    if (Status status = check_outputs(outputs, s); !status) return status;
  }
  Status sent = reply_source(batch, s, rows_of(source, outputs), rows);
  if (batch.answered == batch.sources.size()) release(batch);
  return sent;
}

Status ExpertEnd::check_source(const BatchState& batch, std::size_t s,
                               std::string_view function) const {
  const std::size_t sources = batch.sources.size();
  if (s < sources) return {};
  return transport::refuse({function, "source", std::to_string(s),
                            sources == 0 ? "none" : "0.." + std::to_string(sources - 1),
                            context_.rank(), "Batch::sources"});
}

Status ExpertEnd::await_rows(const BatchState& batch, std::size_t s, std::uint32_t rows,
                             Timeout timeout) {
  if (Status status = check_source(batch, s, "await_rows"); !status) return status;
  const BatchSource& source = batch.sources[s];
  if (rows > source.rows) {
    return transport::refuse({"await_rows", "rows", std::to_string(rows),
                              "at most " + std::to_string(source.rows), context_.rank(),
                              "Batch::sources"});
  }
  if (rows_ready(batch, s) >= rows) return {};
  const GroupCore& group = *context_.group;
  const Deadline deadline{timeout,
                          source.operation == 0 ? group.start_timeout : group.step_timeout};
  const auto step = [&]() -> Status {
    if (context_.state.load(std::memory_order_acquire) != ChannelState::open)
      return context_.check("await_rows");
    if (rows_ready(batch, s) >= rows) return {};
    blame(source.attention_rank);
    return peer_closed_[missing_] ? closed_by_peer("await_rows") : check_missing("await_rows");
  };
  Status status = wait_until(worker_, group.wait, deadline, step, [&] { pump(); });
  count_wait(Clock::now() - deadline.start());
  if (status.code() != Code::timeout) return status;
  return timed_out("await_rows", source.operation, "attention");
}

}  // namespace m2n::collectives
