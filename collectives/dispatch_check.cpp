// The arguments of dispatch, checked before anything else happens.
#include <bit>
#include <string>

#include "collectives/attention_end.hpp"
#include "collectives/row_check.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

using transport::refuse;

namespace {

bool aligned(const void* pointer, std::size_t to) noexcept {
  return std::bit_cast<std::uintptr_t>(pointer) % to == 0;
}

}  // namespace

Status AttentionEnd::check_arguments(const Dispatch& arguments) const {
  const ChannelConfig& config = context_.config;
  if (arguments.tokens > config.max_tokens) {
    return refuse({"dispatch", "tokens", std::to_string(arguments.tokens),
                   "0.." + std::to_string(config.max_tokens), context_.rank(),
                   "ChannelConfig::max_tokens"});
  }
  if (arguments.extra.size() != config.extra_row_bytes.size()) {
    return refuse({"dispatch", "extra", std::to_string(arguments.extra.size()) + " arrays",
                   std::to_string(config.extra_row_bytes.size()), context_.rank(),
                   "ChannelConfig::extra_row_bytes"});
  }
  if (arguments.tokens == 0) return {};
  if (!rows_fit(arguments.x, context_.row_sizes[0])) {
    return explain_rows(arguments.x, context_.row_sizes[0],
                        {"dispatch", "x", "ChannelConfig::hidden and payload", context_.rank()});
  }
  for (std::size_t i = 0; i < arguments.extra.size(); ++i) {
    if (rows_fit(arguments.extra[i], context_.row_sizes[i + 1])) continue;
    return explain_rows(arguments.extra[i], context_.row_sizes[i + 1],
                        {"dispatch", "extra[" + std::to_string(i) + "]",
                         "ChannelConfig::extra_row_bytes", context_.rank()});
  }
  return check_routing(arguments);
}

Status AttentionEnd::check_routing(const Dispatch& arguments) const {
  const ChannelConfig& config = context_.config;
  const std::int32_t rank = context_.rank();
  const std::size_t id_bytes = arguments.ids.type == ExpertIds::Type::i32 ? 4 : 8;
  if (arguments.ids.base == nullptr || !aligned(arguments.ids.base, id_bytes)) {
    return refuse(
        {"dispatch", "ids", arguments.ids.base == nullptr ? "nullptr" : "a misaligned pointer",
         "memory aligned to " + std::to_string(id_bytes) + " bytes", rank, "Dispatch::ids"});
  }
  if (arguments.ids.row_stride != 0 && arguments.ids.row_stride < config.top_k) {
    return refuse({"dispatch", "ids.row_stride", std::to_string(arguments.ids.row_stride),
                   "0 or at least " + std::to_string(config.top_k), rank, "ChannelConfig::top_k"});
  }
  const RoutingWeights& weights = arguments.weights;
  if (weights.type != DataType::f32 && weights.type != DataType::bf16) {
    return refuse(
        {"dispatch", "weights.type", name(weights.type), "f32 or bf16", rank, "Dispatch::weights"});
  }
  if (!aligned(weights.base, size_of(weights.type))) {
    return refuse({"dispatch", "weights", "a misaligned pointer",
                   "memory aligned to " + std::to_string(size_of(weights.type)) + " bytes", rank,
                   "Dispatch::weights"});
  }
  if (weights.row_stride != 0 && weights.row_stride < config.top_k) {
    return refuse({"dispatch", "weights.row_stride", std::to_string(weights.row_stride),
                   "0 or at least " + std::to_string(config.top_k), rank, "ChannelConfig::top_k"});
  }
  return {};
}

}  // namespace m2n::collectives
