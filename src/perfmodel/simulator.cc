#include "perfmodel/simulator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "perfmodel/virtual_link.h"

namespace vericache {
namespace {

constexpr int kGroupTokens = 64;
constexpr int kPrefillChunk = 2048;
constexpr int kSamples = 2000;

struct SimRequest {
  double arrival = 0.0;
  int context = 0;
  int new_tokens = 0;
  int prefilled = 0;
  int emitted = 0;
  int drafted = 0;

  int cached() const { return prefilled + std::max(emitted - 1, 0); }
};

class Simulation {
 public:
  Simulation(const SimulationOptions& options,
             const std::function<void(const TimelineSpan&)>& on_span)
      : options_(options),
        on_span_(on_span),
        room_(Room(options)),
        random_(options.seed),
        scheduler_(SchedulerOptionsFor(options, room_)) {
    result_.memory_room = room_;
  }

  SimulationResult Run() {
    MakeRequests();
    while (finished_ < options_.requests) {
      SubmitArrived();
      CollectCopies();
      const IterationPlan& plan = scheduler_.Plan();
      for (const int id : plan.admit) {
        Begin(id);
      }
      for (const int id : plan.reload) {
        StartCopy(id, FullBytes(requests_[Index(id)].cached()), scheduler_.DueOf(id));
      }
      NoteOccupancy();
      if (!Compute(plan)) {
        Wait();
      }
    }
    result_.seconds = now_;
    result_.link_busy = now_ > 0.0 ? link_.busy_seconds(now_) / now_ : 0.0;
    result_.counts = scheduler_.counts();
    return std::move(result_);
  }

 private:
  static std::size_t Index(int id) { return static_cast<std::size_t>(id); }

  static Bytes Room(const SimulationOptions& options) {
    if (options.model.weights >= options.device.memory) {
      throw UserError(options.model.name + " does not fit on " + options.device.name + ": " +
                      HumanBytes(options.model.weights) + " of " +
                      HumanBytes(options.device.memory));
    }
    return options.device.memory - options.model.weights;
  }

  static Bytes GroupBytes(const SimulationOptions& options) {
    return options.model.kv_per_token() * kGroupTokens;
  }

  static SchedulerOptions SchedulerOptionsFor(const SimulationOptions& options, Bytes room) {
    return {.policy = options.policy,
            .draft_length = options.draft_length,
            .adaptive = options.adaptive,
            .batch = options.batch,
            .prefill_chunk = kPrefillChunk,
            .room = room,
            .memory = {std::uint64_t{1} << 62U},
            .reloads = options.policy != Policy::kFull,  // requests that do not fit wait
            .group = GroupBytes(options),
            .group_slots = kGroupTokens,
            .link_bandwidth = options.device.link_bandwidth,
            .iteration_s = Count(options.model.weights) / options.device.memory_bandwidth};
  }

  Bytes FullBytes(int tokens) const {
    return GroupBytes(options_) *
           static_cast<std::uint64_t>((tokens + kGroupTokens - 1) / kGroupTokens);
  }

  Bytes CompressedBytes(int tokens) const {
    return {static_cast<std::uint64_t>(options_.compression * Count(FullBytes(tokens)))};
  }

  int Varied(int mean) {
    std::uniform_real_distribution<double> share(1.0 - options_.spread, 1.0 + options_.spread);
    return std::max(1, static_cast<int>(std::lround(mean * share(random_))));
  }

  void MakeRequests() {
    std::exponential_distribution<double> gap(options_.rate > 0.0 ? options_.rate : 1.0);
    double at = 0.0;
    for (int i = 0; i < options_.requests; ++i) {
      at += options_.rate > 0.0 ? gap(random_) : 0.0;
      SimRequest request{.arrival = at};
      request.context = Varied(options_.context);
      request.new_tokens = Varied(options_.new_tokens);
      const RequestNeed need = Need(request);
      if (scheduler_.NeededRoom(need) > room_) {
        throw UserError("a request of " + std::to_string(request.context) + " tokens needs " +
                        HumanBytes(scheduler_.NeededRoom(need)) + " besides the weights, " +
                        HumanBytes(room_) + " are there");
      }
      requests_.push_back(request);
    }
    result_.latencies.resize(requests_.size());
    result_.first_token.resize(requests_.size());
  }

  RequestNeed Need(const SimRequest& request) const {
    const int most = request.context + request.new_tokens;
    return {.prompt_tokens = request.context,
            .max_tokens = request.new_tokens,
            .resident = options_.policy == Policy::kFull ? FullBytes(most) : CompressedBytes(most),
            .memory = {}};
  }

  void SubmitArrived() {
    while (submitted_ < options_.requests && requests_[Index(submitted_)].arrival <= now_) {
      scheduler_.Submit(submitted_, Need(requests_[Index(submitted_)]));
      ++submitted_;
    }
  }

  // A request with a stored context begins when its cache is there.
  void Begin(int id) {
    if (options_.stored_contexts) {
      const int context = requests_[Index(id)].context;
      scheduler_.Loading(id);
      StartCopy(id,
                options_.policy == Policy::kFull ? FullBytes(context) : CompressedBytes(context),
                scheduler_.now());
    }
  }

  void StartCopy(int id, Bytes bytes, std::int64_t due) {
    result_.link_bytes += bytes;
    link_.Start(id, bytes, Count(bytes) / options_.device.link_bandwidth, due, now_);
  }

  void CollectCopies() {
    while (const auto copy = link_.Ended(now_)) {
      Note(TimelineSpan::Kind::kReload, copy->request, copy->begin, copy->end);
      SimRequest& request = requests_[Index(copy->request)];
      if (request.prefilled == 0) {  // all but the last token, whose row gives the first logits
        request.prefilled = request.context - 1;
        scheduler_.Prefilled(copy->request, request.prefilled);
      } else {
        scheduler_.Reloaded(copy->request, copy->bytes, copy->seconds);
      }
    }
  }

  // Nothing can be computed: until the link or a request brings something.
  void Wait() {
    std::optional<double> next = link_.next();
    if (submitted_ < options_.requests && (next || scheduler_.active() == 0)) {
      const double arrival = requests_[Index(submitted_)].arrival;
      next = std::min(next.value_or(arrival), arrival);
    }
    if (next) {  // otherwise a place in the rings comes nearer
      now_ = std::max(now_, *next);
    }
    scheduler_.EndIteration(std::nullopt);
  }

  double Seconds(const IterationPlan& plan) const {
    const DeviceProfile& device = options_.device;
    double bytes = Count(options_.model.weights);
    double flops = 0.0;
    double in_turn = device.iteration_s;
    for (const RowGroup& group : plan.rows) {
      const SimRequest& request = requests_[Index(group.request)];
      const bool draft = group.kind == RowGroup::Kind::kDraft;
      const int cached = request.cached() + (draft ? request.drafted : 0);
      const double read = Count(draft ? CompressedBytes(cached) : FullBytes(cached));
      bytes += read;
      flops +=
          group.rows * RowFlops(options_.model, draft ? options_.compression * cached : cached);
      in_turn +=
          group.rows * RowFlops(options_.model, 0.0) / device.flops +
          read / (group.rows == 1 ? device.draft_cache_bandwidth : device.verify_cache_bandwidth);
    }
    return device.in_turn() ? in_turn
                            : std::max(bytes / device.memory_bandwidth, flops / device.flops);
  }

  bool Compute(const IterationPlan& plan) {
    if (plan.rows.empty()) {
      return false;
    }
    const double seconds = Seconds(plan);
    const double begin = now_;
    now_ += seconds;
    ++result_.iterations;
    for (const RowGroup& group : plan.rows) {
      Report(group, begin);
    }
    scheduler_.EndIteration(seconds);
    return true;
  }

  void Report(const RowGroup& group, double begin) {
    SimRequest& request = requests_[Index(group.request)];
    const int id = group.request;
    switch (group.kind) {
      case RowGroup::Kind::kPrefill:
        Note(TimelineSpan::Kind::kPrefill, id, begin, now_);
        request.prefilled += group.rows;
        scheduler_.Prefilled(id, group.rows);
        if (request.prefilled == request.context) {
          result_.first_token[Index(id)] = now_ - request.arrival;
          if (options_.policy != Policy::kFull) {
            scheduler_.Stored(id);
          }
          Emit(id, 1);
        }
        break;
      case RowGroup::Kind::kDecode:
        Note(TimelineSpan::Kind::kDraft, id, begin, now_);
        scheduler_.Decoded(id);
        Emit(id, 1);
        break;
      case RowGroup::Kind::kDraft:
        Note(TimelineSpan::Kind::kDraft, id, begin, now_);
        if (options_.policy == Policy::kLossy) {
          scheduler_.Decoded(id);
          Emit(id, 1);
        } else {
          ++request.drafted;
          scheduler_.Drafted(id, false);
        }
        break;
      case RowGroup::Kind::kVerify: {
        Note(TimelineSpan::Kind::kVerify, id, begin, now_);
        const int accepted = AcceptedOf(request.drafted);
        result_.drafted += request.drafted;
        result_.accepted += accepted;
        request.drafted = 0;
        scheduler_.Verified(id, accepted);
        Emit(id, accepted + 1);
        break;
      }
    }
  }

  int AcceptedOf(int drafted) {
    const double chance = options_.acceptance.Chance(std::max(drafted, 1));
    std::uniform_real_distribution<double> dice;
    int accepted = 0;
    while (accepted < drafted && dice(random_) < chance) {
      ++accepted;
    }
    return accepted;
  }

  void Emit(int id, int tokens) {
    SimRequest& request = requests_[Index(id)];
    request.emitted += tokens;
    result_.tokens += tokens;
    Check(request.emitted <= request.new_tokens, "no more tokens than asked for");
    if (request.emitted == request.new_tokens) {
      result_.latencies[Index(id)] = now_ - request.arrival;
      ++finished_;
      scheduler_.Finish(id);
    }
  }

  void Note(TimelineSpan::Kind kind, int id, double begin, double end) {
    if (on_span_) {
      on_span_({.kind = kind, .request = id, .begin = begin, .end = end});
    }
  }

  // Kept to at most kSamples, by halving.
  void NoteOccupancy() {
    result_.memory_peak = std::max(result_.memory_peak, scheduler_.in_use());
    result_.most_active = std::max(result_.most_active, scheduler_.active());
    if (now_ < next_sample_) {
      return;
    }
    const double since = result_.occupancy.empty() ? 0.0 : result_.occupancy.back().time;
    const double done = link_.busy_seconds(now_);
    result_.occupancy.push_back(
        {.time = now_,
         .in_use = scheduler_.in_use(),
         .link_busy =
             now_ > since ? std::clamp((done - sampled_link_) / (now_ - since), 0.0, 1.0) : 0.0,
         .active = scheduler_.active()});
    sampled_link_ = done;
    if (result_.occupancy.size() >= kSamples) {
      for (std::size_t i = 0; 2 * i < result_.occupancy.size(); ++i) {
        result_.occupancy[i] = result_.occupancy[2 * i];
      }
      result_.occupancy.resize(kSamples / 2);
      sample_gap_ = 2.0 * now_ / kSamples;
    }
    next_sample_ = now_ + sample_gap_;
  }

  const SimulationOptions& options_;
  const std::function<void(const TimelineSpan&)>& on_span_;
  Bytes room_;
  std::mt19937_64 random_;
  Scheduler scheduler_;
  std::vector<SimRequest> requests_;
  VirtualLink link_;
  int submitted_ = 0;
  int finished_ = 0;
  double now_ = 0.0;
  double sampled_link_ = 0.0;
  double next_sample_ = 0.0;
  double sample_gap_ = 0.0;
  SimulationResult result_;
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options,
                          const std::function<void(const TimelineSpan&)>& on_span) {
  return Simulation(options, on_span).Run();
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0.0;
  }
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(share * last))];
}

}  // namespace vericache
