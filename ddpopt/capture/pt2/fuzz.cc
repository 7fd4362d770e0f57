#include "ddpopt/capture/pt2/fuzz.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "caffe2/serialize/in_memory_adapter.h"
#include "caffe2/serialize/inline_container.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "nlohmann/json.hpp"

namespace ddpopt::pt2 {
namespace {

using Records = std::map<std::string, std::string>;

int64_t PeakKiB() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Empty if it isn't one that LibTorch's own reader takes.
Records RecordsOf(const std::string& archive) {
  Records records;
  try {
    caffe2::serialize::PyTorchStreamReader reader(
        std::make_shared<caffe2::serialize::MemoryReadAdapter>(archive.data(), static_cast<off_t>(archive.size())));
    for (const std::string& name : reader.getAllRecords()) {
      if (absl::StartsWith(name, ".data/") || name == "version") continue;  // the writer's own
      const auto [data, size] = reader.getRecord(name);
      records[name] = std::string(static_cast<const char*>(data.get()), size);
    }
  } catch (const c10::Error&) {
    records.clear();
  }
  return records;
}

std::string ArchiveOf(const Records& records) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto& [name, content] : records) writer.writeRecord(name, content.data(), content.size());
  writer.writeEndOfFile();
  return bytes;
}

// A random place of the document, the deeper ones more often.
nlohmann::json* PlaceIn(nlohmann::json& json, std::mt19937_64& random) {
  nlohmann::json* place = &json;
  while (place->is_structured() && !place->empty() && random() % 8 != 0) {
    auto it = place->begin();
    std::advance(it, random() % place->size());
    place = &*it;
  }
  return place;
}

void Erase(nlohmann::json* place, std::mt19937_64& random) {
  if (place->is_object() && !place->empty()) {
    auto it = place->begin();
    std::advance(it, random() % place->size());
    place->erase(it);
  } else if (place->is_array() && !place->empty()) {
    place->erase(random() % place->size());
  } else {
    *place = nullptr;
  }
}

void Alter(nlohmann::json& json, std::mt19937_64& random) {
  static const std::vector<nlohmann::json> kValues = {nullptr,
                                                      true,
                                                      0,
                                                      -1,
                                                      1,
                                                      2,
                                                      7,
                                                      20,
                                                      4611686018427387904,
                                                      -9223372036854775807 - 1,
                                                      1.5,
                                                      1e300,
                                                      "",
                                                      "x",
                                                      "../x",
                                                      "as_int",
                                                      "s0",
                                                      nlohmann::json::array(),
                                                      nlohmann::json::object(),
                                                      {{"as_int", 3}},
                                                      {{"as_none", true}},
                                                      {{"name", "x"}},
                                                      {{"as_tensor", {{"name", "x"}}}},
                                                      {{"as_expr", {{"expr_str", "Mul(Integer(2), Symbol('s0'))"}, {"hint", nullptr}}}},
                                                      "L['x'].size()[0] % 2 == 0",
                                                      "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]"};
  nlohmann::json* place = PlaceIn(json, random);
  switch (random() % 5) {
    case 0:
      Erase(place, random);
      break;
    case 1:
      if (place->is_array() && !place->empty()) {
        place->push_back((*place)[random() % place->size()]);
      } else {
        *place = kValues[random() % kValues.size()];
      }
      break;
    case 2: {  // what stands elsewhere
      const nlohmann::json other = *PlaceIn(json, random);
      *place = other;
      break;
    }
    default:
      *place = kValues[random() % kValues.size()];
  }
}

std::string AlteredDocument(const std::string& text, std::mt19937_64& random) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return text;
  for (std::uint64_t k = 0; k < 1 + random() % 3; ++k) Alter(json, random);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string AlteredBytes(std::string input, std::mt19937_64& random) {
  if (input.empty()) return input;
  for (std::uint64_t k = 0; k < 1 + random() % 4; ++k) {
    // The beginning is where headers are.
    const std::size_t range = random() % 2 == 0 ? input.size() : std::min<std::size_t>(input.size(), 1000);
    input[random() % range] = static_cast<char>(random() % 2 == 0 ? '0' + random() % 10 : random());
  }
  if (random() % 8 == 0) input.resize(random() % input.size());
  return input;
}

// The header's text is a document too.
std::string AlteredSafetensors(const std::string& input, std::mt19937_64& random) {
  uint64_t size = 0;
  if (input.size() < sizeof(size)) return AlteredBytes(input, random);
  std::memcpy(&size, input.data(), sizeof(size));
  if (size > input.size() - sizeof(size)) return AlteredBytes(input, random);
  const std::string header = AlteredDocument(input.substr(sizeof(size), size), random);
  const std::string rest = input.substr(sizeof(size) + size);
  size = header.size();
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&size), sizeof(size)), header, rest);
}

std::string Complaint(const absl::Status& status, const std::string& named) {
  if (status.message().empty()) return "an error without a message";
  if (status.code() == absl::StatusCode::kInternal || status.code() == absl::StatusCode::kUnknown) {
    return absl::StrCat("something that nobody expected was thrown: ", status.ToString());
  }
  if (!absl::StrContains(status.message(), named)) return absl::StrCat("the file isn't named: ", status.ToString());
  return "";
}

std::string CheckProgram(const ExportedProgram& program) {
  if (const absl::Status status = program.module()->Lint(); !status.ok()) return absl::StrCat("accepted, but: ", status.ToString());
  (void)program.CheckExecutable();
  (void)program.CheckData();
  (void)program.mutated_buffers();
  (void)program.mutated_inputs();
  (void)program.BindInputs({});
  (void)program.in_tree().ToString();
  return "";
}

}  // namespace

const char* FuzzTargetName(FuzzTarget target) {
  switch (target) {
    case FuzzTarget::kArchive:
      return "archive";
    case FuzzTarget::kGraph:
      return "graph";
    case FuzzTarget::kSafetensors:
      return "safetensors";
  }
  return "";
}

std::string CheckInput(FuzzTarget target, const std::string& input, const std::string& scratch, bool* accepted) {
  const int64_t before = PeakKiB();
  std::string complaint;
  bool taken = false;
  if (target != FuzzTarget::kGraph) {
    if (const absl::Status written = WriteFile(scratch, input); !written.ok()) return written.ToString();
  }
  if (target == FuzzTarget::kSafetensors) {
    const auto file = SafetensorsFile::Open(scratch);
    taken = file.ok();
    if (!taken) complaint = Complaint(file.status(), scratch);
    for (std::size_t i = 0; taken && i < file->entries().size(); ++i) {
      auto entry = file->entries().begin();
      std::advance(entry, i);
      const auto tensor = file->Read(entry->first);
      if (!tensor.ok()) complaint = Complaint(tensor.status(), "");
    }
  } else {
    const auto program = target == FuzzTarget::kArchive ? LoadExportedProgram(scratch) : ParseExportedProgram(input);
    taken = program.ok();
    complaint = taken ? CheckProgram(**program) : Complaint(program.status(), target == FuzzTarget::kArchive ? scratch : "");
  }
  if (accepted != nullptr) *accepted = taken;
  constexpr int64_t kMostKiB = 256 * 1024;
  if (complaint.empty() && PeakKiB() - before > kMostKiB) complaint = absl::StrCat("takes ", (PeakKiB() - before) / 1024, " MiB");
  return complaint;
}

std::string CorpusInput(FuzzTarget target, std::string file) {
  if (target != FuzzTarget::kGraph || !absl::StartsWith(file, "PK")) return file;
  for (const auto& [name, content] : RecordsOf(file)) {
    if (absl::StartsWith(name, "models/")) return content;
  }
  return file;
}

std::string Mutate(FuzzTarget target, const std::vector<std::string>& corpus, std::mt19937_64& random) {
  const std::string& input = corpus[random() % corpus.size()];
  if (random() % 4 == 0) return AlteredBytes(input, random);
  if (target == FuzzTarget::kGraph) return AlteredDocument(input, random);
  if (target == FuzzTarget::kSafetensors) return AlteredSafetensors(input, random);
  Records records = RecordsOf(input);
  if (records.empty()) return AlteredBytes(input, random);
  auto record = records.begin();
  do {
    record = records.begin();
    std::advance(record, random() % records.size());
  } while (!absl::EndsWith(record->first, ".json") && random() % 4 != 0);
  if (random() % 16 == 0) {
    records.erase(record);
  } else if (absl::EndsWith(record->first, ".json")) {
    record->second = AlteredDocument(record->second, random);
  } else {
    record->second = AlteredBytes(record->second, random);
  }
  return ArchiveOf(records);
}

}  // namespace ddpopt::pt2
