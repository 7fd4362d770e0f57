#ifndef DDPOPT_FX_GRAPH_NAME_TABLE_H_
#define DDPOPT_FX_GRAPH_NAME_TABLE_H_

// Unique names of a graph's nodes, chosen exactly as torch.fx's namespace chooses them.
//
//   NameTable names;
//   names.Create("add").text;       // "add"
//   names.Create("add").text;       // "add_1"
//   names.Create("sum").text;       // "sum_1": "sum" is Python's
//
// A name is a base with or without a number; each base keeps the numbers it gave away as bits, so that a million names cost little
// more than their characters and none is compared with the others. Names are never given back. Not thread-safe.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace ddpopt::fx {

class NameTable {
 public:
  // The part of a name before its number, and which numbers are taken.
  class Base {
   private:
    friend class NameTable;
    friend class Checker;
    bool Has(std::uint64_t number) const;
    void Add(std::uint64_t number);
    // The first number not below `from` (which is not 0) that isn't used.
    std::uint64_t NextFree(std::uint64_t from);

    absl::string_view text_;
    std::uint32_t index_ = 0;
    bool reserved_ = false;
    bool used_ = false;        // as a name without a number
    std::uint64_t count_ = 0;  // the number last given: torch.fx goes on from there
    std::uint64_t size_ = 0;
    std::uint64_t first_free_ = 1;
    std::vector<std::uint64_t> dense_;
    std::unique_ptr<absl::flat_hash_set<std::uint64_t>> sparse_;
  };

  struct Name {
    absl::string_view text;  // lives as long as the table
    Base* base;
  };

  // A wish, made a Python identifier and taken apart: what CreateNode keeps of a target, so that the next node of it costs no parsing.
  struct Candidate {
    Base* base = nullptr;
    std::string text;
    bool numbered = false;
    std::uint64_t number = 0;
  };

  NameTable();
  ~NameTable();
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  Candidate Parse(absl::string_view wish);
  Name Create(const Candidate& candidate);
  // Create(Parse(wish)).
  Name Create(absl::string_view wish);
  // The same for a name that another table gave out as `like`, whose base here is `base`; saves the search. Precondition: same text of
  // the base.
  Name CreateLike(Base* base, absl::string_view like);
  // The base of that text, made if need be.
  Base* FindOrAddBase(absl::string_view text);

  // Room for that many bases.
  void Reserve(std::size_t bases) { by_text_.reserve(bases); }
  std::size_t num_bases() const { return bases_.size(); }
  static std::uint32_t Index(const Base* base);
  static absl::string_view Text(const Base* base);

  // Checks that names were given out by the table, and each to one node only. What it needs to remember is a bit per name.
  class Checker {
   public:
    explicit Checker(const NameTable& table);
    enum class Verdict { kGood, kUnknown, kTwice };
    Verdict Check(absl::string_view text, const Base* base);

   private:
    const NameTable& table_;
    std::vector<std::uint64_t> offsets_;  // of each base's bits
    std::vector<std::uint64_t> seen_;
    absl::flat_hash_set<absl::string_view> others_;  // names whose numbers have no bit
  };

 private:
  Name Number(Base* base, std::uint64_t at_least);
  absl::string_view Store(absl::string_view text);

  absl::flat_hash_map<absl::string_view, Base*> by_text_;
  std::deque<Base> bases_;
  absl::flat_hash_set<absl::string_view> odd_;  // used names like "add_01", which no number stands for
  std::vector<std::unique_ptr<char[]>> chunks_;
  char* free_ = nullptr;
  std::size_t left_ = 0;
};

// Whether Python or torch.fx's generated code already means something by this name.
bool IsReservedName(absl::string_view name);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_NAME_TABLE_H_
