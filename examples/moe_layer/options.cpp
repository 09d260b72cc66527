// Command line of the example. Main thread, at start.
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <map>

namespace moe {
namespace {

// "2x3" -> 2 attention ranks, 3 expert ranks; the text of the refusal, or "".
std::string parse_ranks(const std::string& text, Options& options) {
  std::string refusal = "--ranks is '" + text + "'; allowed: MxN with M and N from 1 to 64";
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos) return refusal;
  std::uint32_t m = 0;
  std::uint32_t n = 0;
  if (!CLI::detail::lexical_cast(text.substr(0, cross), m)) return refusal;
  if (!CLI::detail::lexical_cast(text.substr(cross + 1), n)) return refusal;
  if (m < 1 || m > 64 || n < 1 || n > 64) return refusal;
  options.attention_ranks = m;
  options.expert_ranks = n;
  return "";
}

}  // namespace

std::optional<int> parse_options(int argc, char** argv, Options& options) {
  CLI::App app{
      "A Mixture-of-Experts layer over M attention ranks and N expert ranks, checked bit for bit "
      "against one process."};
  const std::map<std::string, m2n::Combine> combines{{"reduced", m2n::Combine::reduced},
                                                     {"per-expert", m2n::Combine::per_expert}};
  const std::map<std::string, m2n::Layout> layouts{{"packed", m2n::Layout::packed},
                                                   {"grouped", m2n::Layout::grouped}};
  app.add_option_function<std::string>(
         "--ranks",
         [&options](const std::string& text) {
           const std::string refusal = parse_ranks(text, options);
           if (!refusal.empty()) throw CLI::ValidationError(refusal);
         },
         "attention x expert ranks")
      ->default_str("2x2");
  app.add_option("--layers", options.layers)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "per layer and attention rank")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "of one micro-batch at one attention rank")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--hidden", options.hidden)->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--intermediate", options.intermediate, "width inside an expert")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--experts", options.experts)->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--top-k", options.top_k)->check(CLI::Range(1, 128))->capture_default_str();
  app.add_option("--depth", options.depth, "micro-batches in flight")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--combine", options.combine, "per-expert or reduced")
      ->transform(CLI::CheckedTransformer(combines))
      ->default_str("per-expert");
  app.add_option("--layout", options.layout, "of the rows at the experts: packed or grouped")
      ->transform(CLI::CheckedTransformer(layouts))
      ->default_str("packed");
  app.add_option("--transport", options.transport, "shm (processes) or inproc (threads)")
      ->check(CLI::IsMember({"shm", "inproc"}))
      ->capture_default_str();
  app.add_option("--trace", options.trace_path, "write a timeline for Perfetto to this file");
  app.add_flag("--corrupt", options.corrupt)->group("");
  try {
    app.parse(argc, argv);
    if (options.top_k > options.experts) {
      throw CLI::ValidationError("--top-k is " + std::to_string(options.top_k) +
                                 "; allowed: 1 to --experts, which is " +
                                 std::to_string(options.experts));
    }
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace moe
