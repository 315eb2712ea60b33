#include "model/weight_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/bandwidth.h"
#include "base/check.h"
#include "base/error.h"
#include "model/exact_rows.h"
#include "model/params.h"
#include "model/weights.h"

namespace vericache {
namespace {

constexpr std::array kRows = {4, 26};
// What is less than this does not pay for other weights than the file's.
constexpr double kWorthwhile = 1.3;

struct Measured {
  double seconds = 0.0;  // the geometric mean over kRows of an iteration's products
  Bytes bytes;
};

// Seconds of all products with `rows` rows on `threads` threads, of which the reports are of one.
double Seconds(const std::vector<TypeReport>& reports, int rows, int threads, double bandwidth) {
  double arithmetic = 0.0;
  double reading = 0.0;
  for (const TypeReport& report : reports) {
    const auto cost = std::ranges::find(report.costs, rows, &TypeReport::Cost::rows);
    Check(cost != report.costs.end(), "costs are known at these row counts");
    const double bytes = static_cast<double>(report.bytes.count);
    const double numbers = bytes * static_cast<double>(ggml_blck_size(report.kind.type)) /
                           static_cast<double>(ggml_type_size(report.kind.type));
    arithmetic += 2.0 * numbers * rows / (cost->exact_flops_per_s * threads);
    reading += bytes / bandwidth;
  }
  return std::max(arithmetic, reading);
}

Measured Measure(const GgufFile& file, const WeightForm& form, int threads, double bandwidth) {
  const Weights weights(file, ReadParams(file), form, threads);
  // On one thread: several that wait for each other say little while others use the machine.
  const std::vector<TypeReport> reports = CheckRows(weights, /*threads=*/1, /*with_costs=*/true);
  Measured measured{.seconds = 1.0, .bytes = weights.bytes()};
  for (const int rows : kRows) {
    measured.seconds *= std::pow(Seconds(reports, rows, threads, bandwidth), 1.0 / kRows.size());
  }
  return measured;
}

std::optional<Measured> MeasureIfItFits(const GgufFile& file, const WeightForm& form, int threads,
                                        double bandwidth) {
  try {
    return Measure(file, form, threads, bandwidth);
  } catch (const UserError&) {  // memory does not hold it
    return std::nullopt;
  }
}

}  // namespace

WeightChoice ChooseWeights(const GgufFile& file, int threads) {
  const double bandwidth = MeasureReadBandwidth(threads);
  const Measured own = Measure(file, {}, threads, bandwidth);
  WeightChoice choice{.file = own.bytes, .chosen = own.bytes};
  for (const WeightForm& form : kWeightForms) {
    if (form == WeightForm{}) {
      continue;
    }
    const std::optional<Measured> other = MeasureIfItFits(file, form, threads, bandwidth);
    const double speedup = other ? own.seconds / other->seconds : 0.0;
    if (speedup > std::max(kWorthwhile, choice.speedup)) {
      choice = {.form = form, .speedup = speedup, .file = own.bytes, .chosen = other->bytes};
    }
  }
  return choice;
}

}  // namespace vericache
