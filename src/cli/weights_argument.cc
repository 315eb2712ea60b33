#include "cli/weights_argument.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/memory.h"
#include "cli/output.h"
#include "model/backend.h"
#include "model/weight_choice.h"

namespace vericache {
namespace {

std::filesystem::path MemoryOf(const GgufFile& file) {
  std::filesystem::path folder;
  if (const char* cache = std::getenv("VERICACHE_CACHE"); cache != nullptr) {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    folder = std::filesystem::path(home) / ".cache" / "vericache";
  } else {
    throw UserError("--weights auto needs VERICACHE_CACHE or HOME, to remember what it chose");
  }
  std::string processor = GgmlInstructionSets();
  std::ranges::replace(processor, ' ', '-');
  return folder / "weights" / (file.Fingerprint() + "-" + processor);
}

}  // namespace

void WeightsArgument::AddTo(CLI::App& command) {
  command
      .add_option("--weights", text,
                  "How the weights are held in memory: as-is (as in the file), packed (laid out "
                  "for this processor), q8_0, q8_0-packed or bf16 (converted), or auto, which "
                  "measures once what is fastest here. It changes the output a little, alike "
                  "under every policy")
      ->capture_default_str();
}

WeightForm WeightsArgument::For(const std::string& model, int threads) const {
  if (const auto form = ParseWeightForm(text)) {
    return *form;
  }
  if (text != "auto") {
    std::string known;
    for (const WeightForm& form : kWeightForms) {
      known += Name(form) + ", ";
    }
    throw UserError("unknown --weights '" + text + "'; known are " + known + "auto");
  }
  const GgufFile file(model);
  const std::filesystem::path memory = MemoryOf(file);
  std::string name;
  if (std::ifstream(memory) >> name) {
    if (const auto form = ParseWeightForm(name)) {
      return *form;
    }
  }
  std::fprintf(stderr, "vericache: measuring which weights are fastest here\n");
  const WeightChoice choice = ChooseWeights(file, threads);
  std::error_code ignored;
  std::filesystem::create_directories(memory.parent_path(), ignored);
  if (!(std::ofstream(memory) << Name(choice.form) << '\n').flush()) {
    throw UserError("cannot write " + memory.string() + ", to remember --weights " +
                    Name(choice.form) + "; name that instead of auto");
  }
  std::fprintf(
      stderr, "vericache: weights %s: products %s times as fast, %s for %s; remembered in %s\n",
      Name(choice.form).c_str(), Fixed(choice.speedup, 1).c_str(),
      HumanBytes(choice.chosen).c_str(), HumanBytes(choice.file).c_str(), memory.string().c_str());
  return choice.form;
}

}  // namespace vericache
