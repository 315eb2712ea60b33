#include "evaluation/draft_quality.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "compressor/refresh.h"
#include "model/rope.h"

namespace vericache {
namespace {

double LogSumExp(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - most);
  }
  return most + std::log(sum);
}

// KL(p || q) in nats, of the softmax of each.
double KlDivergence(std::span<const float> p, std::span<const float> q) {
  const double log_p = LogSumExp(p);
  const double log_q = LogSumExp(q);
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = static_cast<double>(p[i]) - log_p;
    sum += std::exp(a) * (a - (static_cast<double>(q[i]) - log_q));
  }
  return std::max(sum, 0.0);
}

// The share of the tokens of `text`, from `first` on, in runs that came before: as a whole, and
// within the first `known` tokens.
double ShareOfRuns(std::span<const TokenId> text, std::size_t first, std::size_t known) {
  constexpr std::size_t kRun = Repetition::kRun;
  if (text.size() <= first) {
    return 0.0;
  }
  std::set<std::vector<TokenId>> runs;
  std::vector<bool> covered(text.size());
  std::size_t next = 0;  // run to be known next
  for (std::size_t begin = first; begin + kRun <= text.size(); ++begin) {
    for (; next + kRun <= std::min(begin, known); ++next) {
      runs.emplace(text.begin() + static_cast<std::ptrdiff_t>(next),
                   text.begin() + static_cast<std::ptrdiff_t>(next + kRun));
    }
    const std::vector<TokenId> run(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                   text.begin() + static_cast<std::ptrdiff_t>(begin + kRun));
    if (runs.contains(run)) {
      std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(begin), kRun, true);
    }
  }
  const auto count =
      std::count(covered.begin() + static_cast<std::ptrdiff_t>(first), covered.end(), true);
  return static_cast<double>(count) / static_cast<double>(text.size() - first);
}

}  // namespace

std::optional<double> RoundQuality::acceptance_length() const {
  return rounds == 0 ? std::nullopt
                     : std::optional(static_cast<double>(accepted) / static_cast<double>(rounds));
}

DraftEvaluation::DraftEvaluation(Transformer& transformer, std::span<const TokenId> prompt,
                                 const EvaluationOptions& options,
                                 const std::function<void(int done, int total)>& on_progress)
    : transformer_(transformer),
      prompt_(prompt.begin(), prompt.end()),
      pool_({std::numeric_limits<std::uint64_t>::max()}),
      full_(pool_, PageKind::kResident, transformer.model().params().geometry(), KvFormat{}) {
  const ModelParams& params = transformer_.model().params();
  const int positions = static_cast<int>(prompt.size());
  if (positions == 0 || positions + options.new_tokens > params.context) {
    throw UserError("a prompt of " + std::to_string(positions) + " tokens and " +
                    std::to_string(options.new_tokens) +
                    " new ones do not fit into the model's context of " +
                    std::to_string(params.context));
  }
  taps_ = Taps(options.needs, params.geometry(), params.heads, positions, transformer_.threads(),
               options.new_tokens);
  const auto start = Clock::now();
  std::span<const float> last;
  for (int done = 0; done < positions;) {
    const int rows = std::min(options.prefill_chunk, positions - done);
    last = Rows(
        full_,
        std::span(prompt_).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows)),
        done, 1, &taps_);
    done += rows;
    if (on_progress) {
      on_progress(done, positions + options.new_tokens);
    }
  }
  prefill_s_ = SecondsSince(start);
  taps_.prompt_is_done = true;
  if (options.needs.repeated_chunk > 0) {
    const auto repeating = Clock::now();
    RecordRepetition(transformer_, full_, prompt_, options.repeat, options.needs.repeated_chunk,
                     options.prefill_chunk, taps_);
    repeat_s_ = SecondsSince(repeating);
  }
  while (true) {
    logits_.insert(logits_.end(), last.begin(), last.end());
    const int position = positions + static_cast<int>(continuation_.size());
    const TokenId token = sampler_.Sample(last, Position{position - 1});
    continuation_.push_back(token);
    if (on_progress) {
      on_progress(position + 1, positions + options.new_tokens);
    }
    if (static_cast<int>(continuation_.size()) == options.new_tokens ||
        (options.is_end && options.is_end(token))) {
      return;
    }
    last = Rows(full_, std::span(&token, 1), position, 1,
                options.needs.verified_window > 0 || options.needs.predictor ? &taps_ : nullptr);
  }
}

// Feeds tokens from `position` on; the logits of the last `outputs` of them.
std::span<const float> DraftEvaluation::Rows(KvCache& cache, std::span<const TokenId> tokens,
                                             int position, int outputs, Taps* taps) {
  const int rows = static_cast<int>(tokens.size());
  if (!cache.Extend(rows)) {
    throw UserError("too little memory for the caches");
  }
  std::vector<Position> positions;
  std::vector<int> wanted;
  for (int i = 0; i < rows; ++i) {
    positions.push_back(Position{position + i});
    if (i >= rows - outputs) {
      wanted.push_back(i);
    }
  }
  const AttentionTask task{
      .cache = &cache, .first_row = 0, .rows = rows, .first_position = position, .taps = taps};
  return transformer_.Forward({.tokens = tokens,
                               .positions = positions,
                               .outputs = wanted,
                               .tasks = {&task, 1},
                               .exact = true});
}

DraftQuality DraftEvaluation::Judge(const Compressor& compressor, double keep,
                                    std::span<const int> draft_lengths) {
  const int positions = static_cast<int>(prompt_.size());
  DraftQuality quality;
  quality.full = PlainCacheBytes(full_.geometry(), full_.tail_layout().format(), positions);
  for (const int draft_length : draft_lengths) {
    const auto start = Clock::now();
    RefreshState state;
    KvCache cache = MakeCompressed(compressor, keep, compressor.refreshes() ? &state : nullptr);
    const bool first = quality.rounds.empty();
    if (first) {
      quality.compress_s =
          SecondsSince(start) + (compressor.needs().repeated_chunk > 0 ? repeat_s_ : 0.0);
      quality.compressed = cache.bytes();
    }
    quality.rounds.push_back({.draft_length = draft_length});
    RunRounds(compressor, keep, std::move(state), std::move(cache), quality.rounds.back(),
              first ? &quality : nullptr);
  }
  return quality;
}

double DraftEvaluation::Divergence(const Compressor& compressor, double keep) {
  constexpr int kRows = 64;  // whose logits are held at once
  const auto vocabulary = static_cast<std::size_t>(transformer_.model().params().vocabulary);
  KvCache cache = MakeCompressed(compressor, keep, nullptr);
  const int fed = static_cast<int>(continuation_.size()) - 1;
  double sum = 0.0;
  for (int begin = 0; begin < fed; begin += kRows) {
    const auto first = static_cast<std::size_t>(begin);
    const auto rows = static_cast<std::size_t>(std::min(kRows, fed - begin));
    const std::span<const float> logits =
        Rows(cache, std::span(continuation_).subspan(first, rows),
             static_cast<int>(prompt_.size()) + begin, static_cast<int>(rows), nullptr);
    for (std::size_t i = 0; i < rows; ++i) {
      sum += KlDivergence(std::span(logits_).subspan((first + i + 1) * vocabulary, vocabulary),
                          logits.subspan(i * vocabulary, vocabulary));
    }
  }
  return fed == 0 ? 0.0 : sum / fed;
}

double DraftEvaluation::HookSeconds(const Compressor& compressor) {
  constexpr int kRows = 256;
  constexpr int kTimes = 3;
  if (!compressor.online()) {
    return 0.0;
  }
  const ModelParams& params = transformer_.model().params();
  const int positions = static_cast<int>(prompt_.size());
  const int rows = std::min(kRows, positions);
  KvCache cache(pool_, PageKind::kTransient, params.geometry(), full_.tail_layout().format());
  if (!cache.AppendTail(full_, 0, positions - rows)) {
    throw UserError("too little memory for the caches");
  }
  const auto tokens = std::span(prompt_).last(static_cast<std::size_t>(rows));
  const auto seconds = [&](Taps* taps) {
    const auto start = Clock::now();
    Rows(cache, tokens, positions - rows, 1, taps);
    const double took = SecondsSince(start);
    cache.Truncate(rows);
    return took;
  };
  double with = std::numeric_limits<double>::infinity();
  double without = with;
  for (int i = 0; i < kTimes; ++i) {
    Taps taps(compressor.needs(), params.geometry(), params.heads, positions,
              transformer_.threads());
    with = std::min(with, seconds(&taps));
    without = std::min(without, seconds(nullptr));
  }
  return std::max(0.0, with - without) / rows / params.layers;
}

void DraftEvaluation::RunRounds(const Compressor& compressor, double keep, RefreshState state,
                                KvCache cache, RoundQuality& quality, DraftQuality* also) {
  const int positions = static_cast<int>(prompt_.size());
  const auto vocabulary = static_cast<std::size_t>(transformer_.model().params().vocabulary);
  const int tokens = static_cast<int>(continuation_.size());
  int judged = 0;
  int agreed = 0;
  double kl = 0.0;
  double refresh_s = 0.0;
  int refreshed = 0;
  // The token fed first is the last emitted one. As in the engine, a round drafts a token less than
  // remain, which its verify adds.
  for (int begin = 0; begin + 2 < tokens;) {
    const int rows = std::min(quality.draft_length, tokens - 2 - begin);
    const std::span<const float> logits =
        Rows(cache,
             std::span(continuation_)
                 .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)),
             positions + begin, rows, nullptr);
    int accepted = 0;
    bool rejected = false;
    while (accepted < rows && !rejected) {
      const auto at = static_cast<std::size_t>(begin + accepted + 1);
      const auto own = logits.subspan(static_cast<std::size_t>(accepted) * vocabulary, vocabulary);
      rejected = sampler_.Sample(own, Position{positions + begin + accepted}) != continuation_[at];
      if (also != nullptr) {
        kl += KlDivergence(std::span(logits_).subspan(at * vocabulary, vocabulary), own);
      }
      accepted += rejected ? 0 : 1;
    }
    judged += accepted + (rejected ? 1 : 0);
    agreed += accepted;
    if (rows == quality.draft_length) {
      quality.rounds += 1;
      quality.accepted += accepted;
    }
    cache.Truncate(rows);
    if (compressor.refreshes()) {
      const auto start = Clock::now();
      cache = Refresh(compressor, state, View(positions + begin + accepted + 1), keep, pool_);
      refresh_s += SecondsSince(start);
      ++refreshed;
    } else if (!cache.AppendTail(full_, positions + begin, accepted + 1) ||
               !cache.Pack(compressor.residual)) {
      throw UserError("too little memory for the caches");
    }
    begin += accepted + 1;
  }
  if (also != nullptr && judged > 0) {
    also->agreement = static_cast<double>(agreed) / judged;
    also->kl = kl / judged;
    also->refresh_s = refreshed == 0 ? 0.0 : refresh_s / refreshed;
  }
}

KvCache DraftEvaluation::MakeCompressed(const Compressor& compressor, double keep,
                                        RefreshState* state) {
  const int positions = static_cast<int>(prompt_.size());
  const std::vector<float> rotation =
      AverageRotation(transformer_.model(), Position{positions}, compressor.future_positions());
  return Compress(compressor, View(positions, rotation), keep, pool_, state);
}

PromptView DraftEvaluation::View(int positions, std::span<const float> rotation) const {
  return {.full = full_,
          .taps = &taps_,
          .positions = positions,
          .heads = transformer_.model().params().heads,
          .future_rotation = rotation};
}

Repetition DraftEvaluation::repetition() const {
  std::vector<TokenId> text = prompt_;
  text.insert(text.end(), continuation_.begin(), continuation_.end());
  return {.of_itself = ShareOfRuns(continuation_, 0, continuation_.size()),
          .of_prompt = ShareOfRuns(text, prompt_.size(), prompt_.size())};
}

}  // namespace vericache
