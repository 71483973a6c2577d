#include "expertflow/engine/perplexity.h"

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/text_model.h"

namespace ef::cli {

namespace {

struct PerplexityCommand {
  CommonOptions common;
  EngineOptions engine;
  std::string file, documents;
  int64_t chunk = 512, chunks = 0, first_scored = -1, max_bytes = 0;
  int64_t min_document = 200;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(file, {"-f,--file", "text file"});
    visit(chunk, {"--chunk", "tokens of a window; windows do not overlap"});
    visit(chunks, {"--chunks", "windows to score, 0: all whole ones"});
    visit(first_scored,
          {"--first-scored", "score a window's tokens from this index on; -1: its second half, as llama.cpp"});
    visit(max_bytes, {"--max-bytes", "read only the first bytes of the file, 0: all"});
    visit(documents, {"--documents",
                      "the file holds documents separated by lines of this token's text: each is tokenised alone and "
                      "followed by the token; "
                      "windows then predict --chunk tokens each, scored from the first"});
    visit(min_document, {"--min-document", "with --documents: characters that a document must exceed"});
  }
};

size_t characters(std::string_view text) {
  return size_t(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string_view strip_newlines(std::string_view text) {
  while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text;
}

// Documents between separator lines, each stripped of newlines at both ends, tokenised alone, followed by the
// separator's id.
std::vector<TokenId> tokenise_documents(const Tokenizer& tokenizer, std::string_view text, const PerplexityCommand& o) {
  const auto separator = tokenizer.find(o.documents);
  EF_CHECK(separator.has_value(), ConfigError, "--documents: \"{}\" is no token of this model", o.documents);
  std::vector<TokenId> ids;
  for (size_t at = 0; at <= text.size();) {
    size_t end = text.find(o.documents, at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view document = strip_newlines(text.substr(at, end - at));
    if (characters(document) > size_t(o.min_document)) {
      const auto tokens = tokenizer.encode(document, {false, false});
      ids.insert(ids.end(), tokens.begin(), tokens.end());
      ids.push_back(*separator);
    }
    at = end + o.documents.size();
  }
  return ids;
}

int run_perplexity(const PerplexityCommand& o) {
  o.common.check();
  EF_CHECK(!o.file.empty(), ConfigError, "--file: expected a text file, found none");
  constexpr int64_t kMaxChunk = 1 << 30;
  EF_CHECK(o.chunk >= 2 && o.chunk < kMaxChunk, ConfigError, "--chunk: expected 2 to {}, found {}", kMaxChunk - 1,
           o.chunk);
  EF_CHECK(o.chunks >= 0, ConfigError, "--chunks: expected 0 or more, found {}", o.chunks);
  EF_CHECK(o.max_bytes >= 0, ConfigError, "--max-bytes: expected 0 or more, found {}", o.max_bytes);
  EF_CHECK(o.first_scored < 0 || o.documents.empty(), ConfigError,
           "--first-scored: has no effect with --documents, whose windows are scored from the first token");
  EF_CHECK(o.min_document == PerplexityCommand().min_document || !o.documents.empty(), ConfigError,
           "--min-document: has an effect only with --documents");
  const auto log = o.common.make_log();
  std::string text = read_named_file("--file", o.file, 1ull << 30);
  if (o.max_bytes > 0) text.resize(std::min(text.size(), size_t(o.max_bytes)));

  PerplexityOptions options;
  options.window = o.chunk, options.max_windows = o.chunks, options.first_scored = o.first_scored;
  if (!o.documents.empty()) options.window = o.chunk + 1, options.stride = o.chunk, options.first_scored = 1;
  EngineOptions engine_options = o.engine;
  if (engine_options.ctx_size == -1) engine_options.ctx_size = options.window;
  engine_options.parallel = 1;
  auto files = open_model(o.common.model);
  engine_options.max_logit_rows = perplexity_logit_rows(files->config.vocab, engine_options.ubatch);
  const auto tokenizer = load_tokenizer(files->checkpoint);
  EF_CHECK(tokenizer.has_value(), ModelError, "{}: perplexity needs a tokenizer, the model brings none",
           o.common.model);
  const auto ids = o.documents.empty() ? tokenizer->encode(text) : tokenise_documents(*tokenizer, text, o);
  auto engine = load_engine(o.common, engine_options, *log);
  log->info("{} tokens", ids.size());
  const auto start = std::chrono::steady_clock::now();
  Progress progress("perplexity", o.common.quiet, "windows");
  const PerplexityResult result = perplexity(*engine, ids, options, [&](const PerplexityResult& r, int64_t windows) {
    progress(uint64_t(r.windows), uint64_t(windows));
    return true;
  });
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const ExpertStats stats = engine->expert_stats();
  log->info("{:.1f} tokens/s, expert hit rate {:.1f} %, {} read", double(result.windows * options.window) / elapsed,
            100 * stats.hit_rate(), human_bytes(stats.bytes_read));
  fmt::print("perplexity {:.4f} +/- {:.4f}, cross entropy {:.5f}, {} tokens in {} windows of {}\n", result.perplexity(),
             result.standard_error(), result.cross_entropy(), result.scored, result.windows, o.chunk);
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PerplexityCommand>();
  CLI::App* command = app.add_subcommand("perplexity", "Perplexity of a text file");
  bind_options(*command, options->common);
  bind_options(*command, *options);
  bind_options(*command, options->engine);
  command->callback([options, &exit_code] { exit_code = run_perplexity(*options); });
}

}  // namespace ef::cli
