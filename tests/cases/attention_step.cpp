// The attention side of a Scenario: builds the caller's arrays in the wanted form, and compares.
#include <cstring>

#include "tests/cases/scenario.hpp"

namespace m2n::testing {
namespace {

constexpr std::byte poison{0xA5};

template <class T>
void store(std::vector<std::byte>& to, std::size_t index, T value) {
  std::memcpy(to.data() + index * sizeof(T), &value, sizeof(T));
}

std::string describe(const std::byte* got, const std::byte* want, DataType type) {
  return std::to_string(reference::to_float(got, type)) + " instead of " +
         std::to_string(reference::to_float(want, type));
}

}  // namespace

AttentionStep::AttentionStep(const Scenario& scenario, const ChannelConfig& config,
                             const ExpectedStep& expected)
    : scenario_{&scenario}, config_{&config}, expected_{&expected} {
  const Form& form = scenario.form;
  const reference::Inputs& in = expected.inputs;
  const std::size_t row = config.hidden * size_of(config.payload);
  const std::size_t out_row = config.hidden * size_of(config.output);
  x_stride_ = row + form.x_pad_bytes;
  out_stride_ = out_row + form.out_pad_bytes;
  add_stride_ = out_row + form.add_pad_bytes;
  x_.assign(in.tokens * x_stride_ + form.x_shift_bytes, poison);
  out_.assign(in.tokens * out_stride_, poison);
  for (std::uint32_t t = 0; t < in.tokens; ++t) {
    std::memcpy(x_.data() + form.x_shift_bytes + t * x_stride_, in.x.data() + t * row, row);
  }
  if (!in.addend.empty()) {
    add_.assign(in.tokens * add_stride_, poison);
    for (std::uint32_t t = 0; t < in.tokens; ++t) {
      std::memcpy(add_.data() + t * add_stride_, in.addend.data() + t * out_row, out_row);
    }
  }
  lay_out_routing();
}

void AttentionStep::lay_out_routing() {
  const Form& form = scenario_->form;
  const reference::Inputs& in = expected_->inputs;
  const std::size_t k = config_->top_k;
  const std::size_t id_stride = k + form.id_pad;
  const std::size_t weight_stride = k + form.weight_pad;
  ids_.assign(in.tokens * id_stride * (form.ids64 ? 8 : 4), poison);
  weights_.assign(in.tokens * weight_stride * (form.bf16_weights ? 2 : 4), poison);
  for (std::size_t i = 0; i < in.tokens * k; ++i) {
    const std::size_t id_at = i / k * id_stride + i % k;
    if (form.ids64) {
      store(ids_, id_at, in.ids[i]);
    } else {
      store(ids_, id_at, static_cast<std::int32_t>(in.ids[i]));
    }
    const std::size_t weight_at = i / k * weight_stride + i % k;
    if (form.bf16_weights) {
      reference::from_float(in.weights[i], DataType::bf16, weights_.data() + weight_at * 2);
    } else {
      store(weights_, weight_at, in.weights[i]);
    }
  }
}

Result<Ticket> AttentionStep::dispatch(Channel& channel) {
  const Form& form = scenario_->form;
  const reference::Inputs& in = expected_->inputs;
  Dispatch arguments;
  arguments.tokens = in.tokens;
  arguments.layer = in.layer;
  arguments.micro_batch = in.micro_batch;
  if (in.tokens > 0) {
    arguments.x = {x_.data() + form.x_shift_bytes, form.x_pad_bytes == 0 ? 0 : x_stride_};
  }
  std::vector<ConstRows> extra;
  for (const std::vector<std::byte>& rows : in.extra) extra.push_back({rows.data()});
  if (form.arena && in.tokens > 0) {
    Result<ArenaBlock> block = channel.arena_acquire(in.tokens);
    if (!block) return block.status();
    const RowFormat format = channel.row_format();
    for (std::size_t i = 0; i < format.sizes_bytes.size(); ++i) {
      const ConstRows from = i == 0 ? arguments.x : extra[i - 1];
      const std::size_t size = format.sizes_bytes[i];
      const std::size_t stride = from.row_stride_bytes == 0 ? size : from.row_stride_bytes;
      for (std::uint32_t t = 0; t < in.tokens; ++t) {
        std::memcpy(block->base + t * block->row_stride_bytes + format.offsets_bytes[i],
                    static_cast<const std::byte*>(from.base) + t * stride, size);
      }
      const ConstRows there{block->base + format.offsets_bytes[i], block->row_stride_bytes};
      (i == 0 ? arguments.x : extra[i - 1]) = there;
    }
  }
  arguments.extra = extra;
  const std::size_t k = config_->top_k;
  const std::size_t id_stride = form.id_pad == 0 ? 0 : k + form.id_pad;
  arguments.ids.base = ids_.data();
  arguments.ids.type = form.ids64 ? ExpertIds::Type::i64 : ExpertIds::Type::i32;
  arguments.ids.row_stride = id_stride;
  if (!form.null_weights) {
    arguments.weights = {weights_.data(), form.bf16_weights ? DataType::bf16 : DataType::f32,
                         form.weight_pad == 0 ? 0 : k + form.weight_pad};
  }
  Result<Ticket> ticket = channel.dispatch(arguments);
  // Rows outside the arena, ids and weights belong to the caller again: scribble over them.
  std::fill(x_.begin(), x_.end(), std::byte{0x7F});
  std::fill(ids_.begin(), ids_.end(), poison);
  std::fill(weights_.begin(), weights_.end(), poison);
  return ticket;
}

MutableRows AttentionStep::out() {
  return {out_.data(), scenario_->form.out_pad_bytes == 0 ? 0 : out_stride_};
}

ConstRows AttentionStep::add() const {
  if (add_.empty()) return {};
  return {add_.data(), scenario_->form.add_pad_bytes == 0 ? 0 : add_stride_};
}

std::string AttentionStep::check() const {
  const std::uint64_t tokens = expected_->inputs.tokens;
  const std::uint64_t first = tokens * config_->shard_index / config_->shard_count;
  const std::uint64_t last = tokens * (config_->shard_index + 1) / config_->shard_count;
  const DataType type = config_->output;
  const std::size_t size = size_of(type);
  for (std::uint64_t t = 0; t < tokens; ++t) {
    const std::byte* row = out_.data() + t * out_stride_;
    const std::size_t written = t >= first && t < last ? config_->hidden : 0;
    for (std::size_t h = 0; h < written; ++h) {
      const std::byte* want = expected_->out.data() + (t * config_->hidden + h) * size;
      if (!reference::equal_numbers(row + h * size, want, type)) {
        return "token " + std::to_string(t) + " column " + std::to_string(h) + ": " +
               describe(row + h * size, want, type);
      }
    }
    for (std::size_t b = written * size; b < out_stride_; ++b) {
      if (row[b] != poison) {
        return "token " + std::to_string(t) + ": byte " + std::to_string(b) +
               (written == 0 ? " of another shard's row was written"
                             : " behind the row was written");
      }
    }
  }
  return {};
}

}  // namespace m2n::testing
