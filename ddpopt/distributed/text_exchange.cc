#include "ddpopt/distributed/text_exchange.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "ddpopt/distributed/communication_error.h"
#include "ddpopt/distributed/run_with_deadline.h"

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// What one value in the store may hold at most; longer texts go in pieces (the store refuses values of 8 MiB).
constexpr size_t kPieceBytes = size_t{4} << 20;
// How often a rank that waits looks whether another has given up.
constexpr Milliseconds kSlice(1000);
constexpr std::chrono::microseconds kLongestPause(20'000);
constexpr char kAbort[] = "abort";
constexpr char kAbortRead[] = "abort_read";  // how many know of it

// Through pointers of one type, so that they are copied as a whole and not byte by byte.
std::vector<uint8_t> Bytes(absl::string_view text) {
  const auto* begin = reinterpret_cast<const uint8_t*>(text.data());
  return {begin, begin + text.size()};
}
std::string Text(const std::vector<uint8_t>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

// Shared with the thread that talks to the store, which may be left behind.
struct TextExchange::Call {
  std::string what, mine, context;
  Milliseconds timeout{0};
  Clock::time_point deadline;
  std::vector<std::string> texts;
  std::atomic<int> waiting_for{0};
  absl::Status status;
};

absl::StatusOr<std::vector<std::string>> TextExchange::AllGather(const std::string& what, const std::string& mine, Milliseconds timeout) {
  const auto call = std::make_shared<Call>();
  call->what = what;
  call->mine = mine;
  call->context = absl::StrCat("exchanging ", what, " on rank ", rank_, " of ", world_size_);
  call->timeout = timeout;
  call->deadline = DeadlineIn(timeout);
  call->waiting_for = rank_;
  // The store's own deadlines come first, if it answers at all.
  constexpr Milliseconds kGrace(2000);
  const bool back = RunWithDeadline(DeadlineIn(timeout) + kGrace, [self = shared_from_this(), call] {
    std::lock_guard<std::mutex> lock(self->mutex_);
    call->status = self->Run(*call);
  });
  if (!back) {
    return absl::DeadlineExceededError(absl::StrCat(call->context, ": waited ", Seconds(timeout), " for rank 0's store at ", master_,
                                                    ", which doesn't answer: rank 0 is stopped, or can't be reached"));
  }
  if (!call->status.ok()) return call->status;
  return std::move(call->texts);
}

// Each rank puts its text into the store and takes the others'. The store lives in rank 0, which therefore stays until everyone has
// acknowledged, and then clears up.
absl::Status TextExchange::Run(Call& call) {
  const std::string exchange = absl::StrCat(exchanges_++, "/");
  const std::string& mine = call.mine;
  // Looks again and again, since a wait of the store's own that ends without result makes c10d complain on standard error.
  const auto wait_for = [&](int rank, const std::string& key) -> absl::Status {
    call.waiting_for = rank;
    std::chrono::microseconds pause(100);
    Clock::time_point look_for_abort = Clock::now();
    while (!store_->check({key})) {
      const Clock::time_point now = Clock::now();
      if (now >= call.deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(call.context, ": waited ", Seconds(call.timeout), " for rank ", rank, ", which has not come"));
      }
      if (now >= look_for_abort) {
        if (store_->check({kAbort})) {
          const std::string why = Text(store_->get(kAbort));
          store_->add(kAbortRead, 1);
          return absl::FailedPreconditionError(absl::StrCat(call.context, ": ", why));
        }
        look_for_abort = now + kSlice / 4;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    return absl::OkStatus();
  };

  // "<pieces> <length of what>\n<what><text, if there are no pieces>"
  const size_t pieces = mine.size() <= kPieceBytes ? 0 : (mine.size() + kPieceBytes - 1) / kPieceBytes;
  call.texts.resize(world_size_);
  std::vector<std::string> keys;  // of this exchange, for clearing up
  try {
    for (size_t i = 0; i < pieces; ++i) {
      store_->set(absl::StrCat(exchange, rank_, "/", i), Bytes(absl::string_view(mine).substr(i * kPieceBytes, kPieceBytes)));
    }
    store_->set(absl::StrCat(exchange, rank_),
                Bytes(absl::StrCat(pieces, " ", call.what.size(), "\n", call.what, pieces == 0 ? mine : "")));
    for (int r = 0; r < world_size_; ++r) {
      const std::string key = absl::StrCat(exchange, r);
      keys.push_back(key);
      DDPOPT_RETURN_IF_ERROR(wait_for(r, key));
      const std::string message = Text(store_->get(key));
      const size_t newline = message.find('\n');
      const std::vector<std::string> header = absl::StrSplit(message.substr(0, newline), ' ');
      size_t their_pieces = 0;
      size_t what_length = 0;
      if (newline == std::string::npos || header.size() != 2 || !absl::SimpleAtoi(header[0], &their_pieces) ||
          !absl::SimpleAtoi(header[1], &what_length) || message.size() < newline + 1 + what_length) {
        return absl::InternalError(absl::StrCat(call.context, ": rank ", r, " sent something unreadable"));
      }
      const std::string their_what = message.substr(newline + 1, what_length);
      if (their_what != call.what) {
        return absl::FailedPreconditionError(absl::StrCat(call.context, ": rank ", r, " is exchanging ", their_what,
                                                          " at this point; all ranks must exchange the same things in the same order"));
      }
      if (their_pieces == 0) call.texts[r] = message.substr(newline + 1 + what_length);
      for (size_t i = 0; i < their_pieces; ++i) {
        keys.push_back(absl::StrCat(key, "/", i));
        call.texts[r] += Text(store_->get(keys.back()));
      }
    }
    if (world_size_ > 1) {
      if (rank_ != 0) {
        store_->set(absl::StrCat(exchange, rank_, "/read"), Bytes("1"));
      } else {
        for (int r = 1; r < world_size_; ++r) {
          keys.push_back(absl::StrCat(exchange, r, "/read"));
          DDPOPT_RETURN_IF_ERROR(wait_for(r, keys.back()));
        }
        for (const std::string& key : keys) store_->deleteKey(key);
      }
    }
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return Annotate(
        CommunicationError(e, absl::StrCat("while waiting for rank ", call.waiting_for.load(), " through rank 0's store at ", master_)),
        call.context);
  }
}

void TextExchange::Abort(const absl::Status& status) {
  try {
    // One that doesn't answer is not waited for.
    RunWithDeadline(DeadlineIn(kSlice), [self = shared_from_this(), text = std::string(status.message())] {
      self->store_->set(kAbort, Bytes(text));
      self->store_->add(kAbortRead, 1);
    });
  } catch (const std::exception&) {
    // The others find out by their deadlines.
  }
}

void TextExchange::Linger() {
  try {
    const Clock::time_point end = DeadlineIn(2 * kSlice);
    RunWithDeadline(end, [self = shared_from_this(), end] {
      while (Clock::now() < end && self->store_->add(kAbortRead, 0) < self->world_size_) std::this_thread::sleep_for(Milliseconds(20));
    });
  } catch (const std::exception&) {
  }
}

}  // namespace ddpopt
