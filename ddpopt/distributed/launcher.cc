#include "ddpopt/distributed/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status.h"

extern char** environ;

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 1024;
constexpr size_t kMaxLine = size_t{64} << 10;  // a longer line is written in pieces
constexpr std::array<int, 4> kEndingSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { Close(); }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

absl::Status Errno(absl::string_view what) { return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno))); }

absl::Status MakePipe(Fd& read_end, Fd& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Errno("pipe");
  read_end = Fd(ends[0]);
  write_end = Fd(ends[1]);
  return absl::OkStatus();
}

// Signals to the launcher come as bytes through a pipe. SIGCHLD only wakes the loop up.
int signal_pipe = -1;

void OnSignal(int signal) {
  const int saved = errno;
  const unsigned char byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = write(signal_pipe, &byte, 1);
  errno = saved;
}

class SignalScope {
 public:
  absl::Status Begin() {
    DDPOPT_RETURN_IF_ERROR(MakePipe(read_, write_));
    fcntl(read_.get(), F_SETFL, O_NONBLOCK);
    fcntl(write_.get(), F_SETFL, O_NONBLOCK);
    signal_pipe = write_.get();
    for (int signal : kEndingSignals) Install(signal, OnSignal);
    Install(SIGCHLD, OnSignal);
    Install(SIGPIPE, SIG_IGN);
    return absl::OkStatus();
  }
  ~SignalScope() {
    for (const auto& [signal, action] : saved_) sigaction(signal, &action, nullptr);
    signal_pipe = -1;
  }
  int fd() const { return read_.get(); }

  // The first ending signal that came since the last call, or 0.
  int Take() {
    int found = 0;
    unsigned char byte = 0;
    while (read(read_.get(), &byte, 1) == 1) {
      if (byte != SIGCHLD && found == 0) found = byte;
    }
    return found;
  }

 private:
  void Install(int signal, void (*handler)(int)) {
    struct sigaction old = {};
    sigaction(signal, nullptr, &old);
    // SIGHUP stays ignored under nohup. SIGINT and SIGQUIT don't: a script's background jobs have them ignored, and must still be endable.
    if (old.sa_handler == SIG_IGN && signal == SIGHUP) return;
    saved_.emplace(signal, old);
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }

  Fd read_;
  Fd write_;
  std::map<int, struct sigaction> saved_;
};

// A port (0: any free one) that stays ours until the run ends: bound, not listening, and with SO_REUSEADDR, so that rank 0 can listen on it
// while the kernel hands it to nobody else.
absl::StatusOr<int> ReservePort(Fd& holder, int port) {
  holder = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!holder.open()) return Errno("socket");
  const int one = 1;
  setsockopt(holder.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(port == 0 ? INADDR_LOOPBACK : INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t length = sizeof(address);
  if (port != 0 && bind(holder.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("master_port ", port, errno == EADDRINUSE ? " is in use on this machine" : absl::StrCat(": ", std::strerror(errno))));
  }
  if (port != 0) return port;
  if (bind(holder.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Errno("finding a free port");
  }
  return ntohs(address.sin_port);
}

absl::StatusOr<std::string> ResolveProgram(const std::string& program) {
  if (program.empty()) return absl::InvalidArgumentError("the program's name is empty");
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* path = std::getenv("PATH");
    for (absl::string_view folder : absl::StrSplit(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
      candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", program));
    }
  }
  bool denied = false;
  for (const std::string& candidate : candidates) {
    struct stat info = {};
    if (stat(candidate.c_str(), &info) != 0) {
      denied = denied || errno == EACCES;
      continue;
    }
    if (S_ISREG(info.st_mode) && access(candidate.c_str(), X_OK) == 0) return candidate;
    denied = true;
  }
  if (denied) return absl::PermissionDeniedError(absl::StrCat("program '", program, "' is no file that can be executed"));
  if (program.find('/') != std::string::npos) return absl::NotFoundError(absl::StrCat("program '", program, "' does not exist"));
  return absl::NotFoundError(absl::StrCat("program '", program, "' is not in PATH",
                                          access(program.c_str(), X_OK) == 0 ? absl::StrCat("; did you mean './", program, "'?") : ""));
}

std::string SignalText(int signal) { return absl::StrCat("signal ", signal, " (", strsignal(signal), ")"); }

// Where output goes. What its reader doesn't take yet is kept, since one that has stopped reading must not stop the launcher.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {
    struct stat info = {};
    known_ = fstat(fd, &info) == 0;
    if (!known_) return;
    device_ = info.st_dev;
    inode_ = info.st_ino;
    socket_ = S_ISSOCK(info.st_mode);
    // Others use this open file too, and are not to find it changed: another one of the same pipe or terminal doesn't wait.
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
      own_ = Fd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
      asks_ = !own_.open();
    }
  }
  int fd() const { return own_.open() ? own_.get() : fd_; }
  bool IsSameFile(const Sink& other) const { return known_ && other.known_ && device_ == other.device_ && inode_ == other.inode_; }
  bool pending() const { return !pending_.empty(); }
  bool full() const { return pending_.size() > kMaxPending; }
  void Append(absl::string_view text) { pending_.append(text.data(), text.size()); }
  // Gives up what is pending.
  void Drop() { pending_.clear(); }

  // As much as the reader takes now. False if there is none any more.
  bool Write() {
    absl::string_view rest = pending_;
    bool readable = true;
    while (!rest.empty()) {
      pollfd ready = {fd(), POLLOUT, 0};
      if (asks_ && poll(&ready, 1, 0) == 0) break;
      // Up to this size a pipe takes all or nothing, so that lines of several writers stay whole.
      absl::string_view piece = rest.substr(0, PIPE_BUF);
      if (const std::size_t end = piece.rfind('\n'); end != absl::string_view::npos) piece = piece.substr(0, end + 1);
      const ssize_t written = socket_ ? send(fd(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                      : write(fd(), piece.data(), piece.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        readable = errno != EPIPE;
        rest = {};
      }
    }
    pending_.erase(0, pending_.size() - rest.size());
    return readable;
  }

 private:
  static constexpr size_t kMaxPending = size_t{1} << 20;
  int fd_;
  Fd own_;
  bool known_ = false, socket_ = false;
  bool asks_ = false;  // before it writes
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::string pending_;
};

struct Stream {
  Fd fd;
  Sink* sink = nullptr;
  std::string prefix;
  std::string pending;
};

struct Rank {
  int rank = 0;  // in the whole group
  int local_rank = 0;
  pid_t pid = -1;
  bool running = false;
  RankOutcome outcome;
};

class Run {
 public:
  Run(const LaunchOptions& options, std::vector<std::string> argv, std::string program)
      : options_(options),
        argv_(std::move(argv)),
        program_(std::move(program)),
        timeout_seconds_(options.timeout_seconds),
        out_(options.stdout_fd),
        err_(options.stderr_fd) {}

  // Nothing of the ranks outlives this object, whatever happens.
  ~Run() { KillAndReap(); }

  absl::StatusOr<LaunchResult> Execute() {
    const Clock::time_point begin = Clock::now();
    DDPOPT_RETURN_IF_ERROR(signals_.Begin());
    port_ = options_.master_port;
    // Elsewhere the master holds it.
    if (options_.node_rank == 0) {
      DDPOPT_ASSIGN_OR_RETURN(port_, ReservePort(port_holder_, options_.master_port));
    }
    while (true) {
      DDPOPT_RETURN_IF_ERROR(RunOnce());
      if (exit_status_ == 0 || interrupted_ || timed_out_ || restarts_ >= options_.max_restarts) break;
      // An ending signal that came while the ranks went.
      if (const int signal = signals_.Take(); signal != 0) {
        exit_status_ = 0;
        Fail(128 + signal, -1, absl::StrCat("the launcher got ", SignalText(signal)));
        break;
      }
      ++restarts_;
      Say(absl::StrCat("starting all ranks again (restart ", restarts_, " of ", options_.max_restarts, ")"));
      if (timeout_seconds_ > 0) timeout_seconds_ = std::max(0.001, options_.timeout_seconds - Since(begin));
    }
    LaunchResult result;
    result.seconds = Since(begin);
    AwaitReaders(begin);
    result.exit_status = exit_status_;
    result.failed_rank = failed_rank_;
    result.reason = reason_;
    result.restarts = restarts_;
    for (const Rank& rank : ranks_) result.ranks.push_back(rank.outcome);
    return result;
  }

 private:
  // All ranks from their start until nothing of them is left.
  absl::Status RunOnce() {
    begin_ = Clock::now();
    exit_status_ = 0;
    failed_rank_ = -1;
    reason_.clear();
    ending_ = false;
    term_at_.reset();
    kill_at_.reset();
    streams_.clear();
    ranks_.assign(options_.nproc_per_node, Rank());
    for (int r = 0; r < options_.nproc_per_node; ++r) {
      ranks_[r].local_rank = r;
      ranks_[r].rank = options_.node_rank * options_.nproc_per_node + r;
      DDPOPT_RETURN_IF_ERROR(Start(ranks_[r]));
    }
    while (AnyRunning()) {
      Poll(NextWait());
      if (const int signal = signals_.Take(); signal != 0) OnEndingSignal(signal);
      CheckRanks();
      CheckClocks();
    }
    KillAndReap();
    // What the ranks wrote last. A process that left its group may hold a pipe open: don't wait for it.
    const Clock::time_point drain_end = Clock::now() + std::chrono::milliseconds(500);
    draining_ = true;
    while (AnyStreamOpen() && Clock::now() < drain_end) Poll(50);
    draining_ = false;
    for (Stream& stream : streams_) FinishStream(stream);
    return absl::OkStatus();
  }

  // The ranks have gone. Their output is waited for as any program waits for its reader: until a signal, or the time limit.
  void AwaitReaders(Clock::time_point begin) {
    absl::optional<Clock::time_point> latest;
    while (out_.pending() || err_.pending()) {
      if (!latest && (interrupted_ || timed_out_)) latest = Clock::now() + std::chrono::seconds(1);
      if (latest && Clock::now() >= *latest) {
        out_.Drop();
        err_.Drop();
        return;
      }
      Poll(100);
      if (latest) continue;
      if (const int signal = signals_.Take(); signal != 0) {
        interrupted_ = true;
        Fail(128 + signal, -1, absl::StrCat("the launcher got ", SignalText(signal), " before its output was read"));
      } else if (options_.timeout_seconds > 0 && Since(begin) >= options_.timeout_seconds && (out_.pending() || err_.pending())) {
        timed_out_ = true;
        Fail(kTimeoutStatus, -1, absl::StrCat("the time limit of ", options_.timeout_seconds, " s is over, and its output was not read"));
      }
    }
  }

  static double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  std::vector<std::string> Environment(const Rank& rank) const {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
      variables[parts.first] = parts.second;
    }
    for (const std::string& name : options_.unset) variables.erase(name);
    variables.emplace("OMP_NUM_THREADS", "1");
    variables.erase("TORCHELASTIC_USE_AGENT_STORE");  // an outer torchrun's
    variables["MASTER_ADDR"] = options_.master_addr.empty() ? "127.0.0.1" : options_.master_addr;
    variables["MASTER_PORT"] = absl::StrCat(port_);
    variables["RANK"] = variables["ROLE_RANK"] = absl::StrCat(rank.rank);
    variables["LOCAL_RANK"] = absl::StrCat(rank.local_rank);
    variables["LOCAL_WORLD_SIZE"] = absl::StrCat(options_.nproc_per_node);
    variables["WORLD_SIZE"] = variables["ROLE_WORLD_SIZE"] = absl::StrCat(options_.nproc_per_node * options_.nnodes);
    variables["GROUP_RANK"] = absl::StrCat(options_.node_rank);
    variables["GROUP_WORLD_SIZE"] = absl::StrCat(options_.nnodes);
    variables["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(restarts_);
    variables["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(options_.max_restarts);
    if (isatty(options_.stderr_fd) != 0) variables.emplace("DDPOPT_PROGRESS", "1");  // through this one, ranks have a terminal
    for (const auto& [name, value] : options_.environment) variables[name] = value;
    if (options_.rank_environment) {
      for (const auto& [name, value] : options_.rank_environment(rank.rank)) variables[name] = value;
    }
    std::vector<std::string> entries;
    for (const auto& [name, value] : variables) entries.push_back(absl::StrCat(name, "=", value));
    return entries;
  }

  absl::Status Start(Rank& rank) {
    const bool plain = options_.rank0_plain && rank.rank == 0;
    Fd out_read, out_write, err_read, err_write, failure_read, failure_write;
    DDPOPT_RETURN_IF_ERROR(MakePipe(failure_read, failure_write));
    if (!plain) {
      DDPOPT_RETURN_IF_ERROR(MakePipe(out_read, out_write));
      DDPOPT_RETURN_IF_ERROR(MakePipe(err_read, err_write));
    }
    const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null.open()) return Errno("opening /dev/null");

    const std::vector<std::string> environment = Environment(rank);
    std::vector<char*> argv, envp;
    for (const std::string& argument : argv_) argv.push_back(const_cast<char*>(argument.c_str()));
    for (const std::string& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    const int out = plain ? options_.stdout_fd : out_write.get();
    const int err = plain ? options_.stderr_fd : err_write.get();
    const pid_t launcher = getpid();

    const pid_t pid = fork();
    if (pid < 0) return Errno("fork");
    if (pid == 0) {
      // Only async-signal-safe calls from here on.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(127);
      for (int signal : kEndingSignals) RestoreDefault(signal);
      RestoreDefault(SIGCHLD);
      struct sigaction action = {};
      action.sa_handler = SIG_DFL;
      sigaction(SIGPIPE, &action, nullptr);
      if (plain) {  // a background process group that may write to the terminal
        action.sa_handler = SIG_IGN;
        sigaction(SIGTTOU, &action, nullptr);
      }
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      // First out of the way of 0, 1 and 2, should the caller have closed some of these.
      const int safe_out = fcntl(out, F_DUPFD_CLOEXEC, 3);
      const int safe_err = fcntl(err, F_DUPFD_CLOEXEC, 3);
      const int safe_null = fcntl(null.get(), F_DUPFD_CLOEXEC, 3);
      if (safe_out >= 0 && safe_err >= 0 && safe_null >= 0 && dup2(safe_null, 0) >= 0 && dup2(safe_out, 1) >= 0 && dup2(safe_err, 2) >= 0) {
        execve(program_.c_str(), argv.data(), envp.data());
      }
      const int error = errno;
      [[maybe_unused]] const ssize_t written = write(failure_write.get(), &error, sizeof(error));
      _exit(127);
    }
    setpgid(pid, pid);  // in both, so that neither has to wait for the other
    rank.pid = pid;
    rank.running = true;
    failure_write.Close();
    int error = 0;
    ssize_t got;
    do {
      got = read(failure_read.get(), &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
    if (got == sizeof(error)) {
      return absl::InternalError(absl::StrCat("can't run '", program_, "': ", std::strerror(error)));
    }
    if (!plain) {
      const std::string prefix = absl::StrCat("[rank ", rank.rank, "] ");
      AddStream(std::move(out_read), options_.rank0_plain ? ErrorSink() : out_, prefix);
      AddStream(std::move(err_read), ErrorSink(), prefix);
    }
    return absl::OkStatus();
  }

  // A handler is reset by exec; this is for the time before it. What is ignored stays ignored.
  static void RestoreDefault(int signal) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) return;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }

  // Standard output and error may be one file, in which lines are to keep their order.
  Sink& ErrorSink() { return err_.IsSameFile(out_) ? out_ : err_; }

  void AddStream(Fd fd, Sink& sink, std::string prefix) {
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    streams_.push_back({std::move(fd), &sink, std::move(prefix), ""});
  }

  void Write(Sink& sink, absl::string_view text) {
    sink.Append(text);
    WriteMore(sink);
  }
  void WriteMore(Sink& sink) {
    if (sink.Write() || &sink != &out_ || out_closed_) return;
    out_closed_ = true;
    Fail(128 + SIGPIPE, -1, "standard output was closed");
  }

  void Say(absl::string_view text) { Write(ErrorSink(), absl::StrCat("launcher: ", text, "\n")); }

  void Emit(Stream& stream, bool all) {
    std::string text;
    size_t begin = 0;
    while (begin < stream.pending.size()) {
      size_t end = stream.pending.find('\n', begin);
      if (end == std::string::npos) {
        if (!all && stream.pending.size() - begin < kMaxLine) break;
        end = stream.pending.size();
      }
      absl::StrAppend(&text, stream.prefix, absl::string_view(stream.pending).substr(begin, end - begin), "\n");
      begin = std::min(end + 1, stream.pending.size());
    }
    stream.pending.erase(0, begin);
    Write(*stream.sink, text);
  }

  void FinishStream(Stream& stream) {
    stream.fd.Close();
    Emit(stream, /*all=*/true);
  }

  void Drain(Stream& stream) {
    std::array<char, 16384> buffer;
    for (int reads = 0; reads < 16 && (draining_ || !stream.sink->full()); ++reads) {  // then another stream's turn
      const ssize_t got = read(stream.fd.get(), buffer.data(), buffer.size());
      if (got > 0) {
        stream.pending.append(buffer.data(), got);
        Emit(stream, /*all=*/false);
      } else if (got == 0) {
        FinishStream(stream);
        return;
      } else if (errno != EINTR) {
        if (errno != EAGAIN) FinishStream(stream);
        return;
      }
    }
  }

  void Poll(int milliseconds) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<Sink*> sinks;
    for (Sink* sink : {&out_, &err_}) {
      if (!sink->pending()) continue;
      fds.push_back({sink->fd(), POLLOUT, 0});
      sinks.push_back(sink);
    }
    std::vector<Stream*> open;
    for (Stream& stream : streams_) {
      // While its reader takes nothing, a rank waits where it writes, as it would without a launcher.
      if (!stream.fd.open() || (stream.sink->full() && !draining_)) continue;
      fds.push_back({stream.fd.get(), POLLIN, 0});
      open.push_back(&stream);
    }
    if (poll(fds.data(), fds.size(), milliseconds) <= 0) return;
    size_t i = 1;
    for (Sink* sink : sinks) {
      if (fds[i++].revents != 0) WriteMore(*sink);
    }
    for (Stream* stream : open) {
      if (fds[i++].revents != 0) Drain(*stream);
    }
  }

  // SIGCHLD wakes the loop; the interval is for a caller that has it blocked.
  int NextWait() const {
    double wait = 0.5;
    const double now = Since(begin_);
    if (timeout_seconds_ > 0) wait = std::min(wait, timeout_seconds_ - now);
    if (term_at_) wait = std::min(wait, *term_at_ - now);
    if (kill_at_) wait = std::min(wait, *kill_at_ - now);
    return std::max(0, static_cast<int>(std::ceil(wait * 1000)));
  }

  bool AnyRunning() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
  }
  bool AnyStreamOpen() const {
    return std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.fd.open(); });
  }

  void OnEndingSignal(int signal) {
    if (interrupted_) {  // asked twice: no more grace
      kill_at_ = Since(begin_);
      return;
    }
    interrupted_ = true;
    Fail(128 + signal, -1, absl::StrCat("the launcher got ", SignalText(signal)));
    term_at_ = Since(begin_);
  }

  // A rank that ended stays a zombie until everything is over: so its process id, which names its process group, is nobody else's.
  void CheckRanks() {
    for (Rank& rank : ranks_) {
      if (!rank.running) continue;
      siginfo_t info = {};
      if (waitid(P_PID, rank.pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
      if (info.si_code == CLD_STOPPED || info.si_code == CLD_TRAPPED) {
        waitid(P_PID, rank.pid, &info, WSTOPPED | WNOHANG);
        if (ending_) continue;
        rank.outcome.stopped = true;
        rank.outcome.signal = info.si_status;
        Fail(128 + info.si_status, rank.rank, absl::StrCat("was stopped by ", SignalText(info.si_status)));
        term_at_ = Since(begin_);
        continue;
      }
      rank.running = false;
      RankOutcome& outcome = rank.outcome;
      outcome.ended_by_launcher = ending_;
      if (info.si_code == CLD_EXITED) {
        outcome.exit_status = info.si_status;
        outcome.text = absl::StrCat("exited with status ", info.si_status);
      } else {
        outcome.exit_status = 128 + info.si_status;
        if (!outcome.stopped) outcome.signal = info.si_status;
        outcome.text = absl::StrCat("was killed by ", SignalText(info.si_status));
      }
      if (outcome.stopped) outcome.text = absl::StrCat("was stopped by ", SignalText(outcome.signal));
      if (outcome.exit_status != 0 && !ending_) Fail(outcome.exit_status, rank.rank, outcome.text);
    }
  }

  // Remembers the first failure; tells of every one.
  void Fail(int status, int rank, const std::string& what) {
    const bool first = exit_status_ == 0;
    const std::string text = rank < 0 ? what : absl::StrCat("rank ", rank, " (pid ", ranks_[rank - ranks_[0].rank].pid, ") ", what);
    if (first) {
      exit_status_ = status;
      failed_rank_ = rank;
      reason_ = rank < 0 ? what : absl::StrCat("rank ", rank, " ", what);
      term_at_ = Since(begin_) + options_.linger_seconds;
    }
    const bool others = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.running; });
    Say(absl::StrCat(text, first && others && options_.linger_seconds == 0 ? "; ending the other ranks" : ""));
  }

  void CheckClocks() {
    const double now = Since(begin_);
    if (timeout_seconds_ > 0 && now >= timeout_seconds_ && !timed_out_) {
      timed_out_ = true;
      std::string running;
      for (const Rank& rank : ranks_) {
        if (rank.running) absl::StrAppend(&running, running.empty() ? "" : ", ", rank.rank);
      }
      if (!running.empty()) {
        Fail(kTimeoutStatus, -1, absl::StrCat("the time limit of ", options_.timeout_seconds, " s is over; still running: rank ", running));
        term_at_ = now;
      }
    }
    if (term_at_ && now >= *term_at_ && !ending_) {
      ending_ = true;
      SignalGroups(SIGTERM);
      SignalGroups(SIGCONT);  // a stopped process acts on SIGTERM only when it goes on
      if (!kill_at_) kill_at_ = now + options_.grace_seconds;
    }
    if (kill_at_ && now >= *kill_at_ && ending_) {
      SignalGroups(SIGKILL);
      kill_at_ = now + 1;  // again, should a process have been forked meanwhile
    }
  }

  void SignalGroups(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) kill(-rank.pid, signal);
    }
  }

  void KillAndReap() {
    SignalGroups(SIGKILL);
    for (Rank& rank : ranks_) {
      if (rank.pid <= 0) continue;
      while (waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      rank.pid = -1;
      rank.running = false;
    }
  }

  const LaunchOptions& options_;
  const std::vector<std::string> argv_;
  const std::string program_;
  SignalScope signals_;
  Fd port_holder_;
  int port_ = 0;
  int restarts_ = 0;
  double timeout_seconds_;  // of what is left
  Clock::time_point begin_;
  std::vector<Rank> ranks_;
  Sink out_, err_;
  std::vector<Stream> streams_;
  bool draining_ = false;  // the ranks have gone
  bool out_closed_ = false;

  int exit_status_ = 0;
  int failed_rank_ = -1;
  std::string reason_;
  bool ending_ = false;       // SIGTERM was sent
  bool interrupted_ = false;  // the launcher got a signal
  bool timed_out_ = false;
  absl::optional<double> term_at_;  // seconds since begin_
  absl::optional<double> kill_at_;
};

}  // namespace

absl::StatusOr<LaunchResult> Launch(const std::vector<std::string>& argv, const LaunchOptions& options) {
  if (options.nproc_per_node < 1 || options.nproc_per_node > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("nproc_per_node must be between 1 and ", kMaxRanks, ", got ", options.nproc_per_node));
  }
  for (const auto& [name, seconds] : {std::pair<const char*, double>{"timeout", options.timeout_seconds},
                                      {"grace period", options.grace_seconds},
                                      {"linger time", options.linger_seconds}}) {
    if (!std::isfinite(seconds) || seconds < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the ", name, " must be a number of seconds, 0 or more, got ", seconds));
    }
  }
  const auto refuse = [](const auto&... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (options.nnodes < 1 || options.nnodes > kMaxRanks) return refuse("nnodes must be between 1 and ", kMaxRanks, ", got ", options.nnodes);
  if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    return refuse("node_rank must be between 0 and ", options.nnodes - 1, " (nnodes is ", options.nnodes, "), got ", options.node_rank);
  }
  if (options.master_port < 0 || options.master_port > 65535)
    return refuse("master_port must be between 1 and 65535, got ", options.master_port);
  if (options.nnodes > 1 && (options.master_addr.empty() || options.master_port == 0)) {
    return refuse(options.nnodes, " nodes need ", options.master_addr.empty() ? "master_addr" : "master_port", ", the same on every node");
  }
  if (options.max_restarts < 0) return refuse("max_restarts must be 0 or more, got ", options.max_restarts);
  if (argv.empty()) return absl::InvalidArgumentError("no program to launch");
  DDPOPT_ASSIGN_OR_RETURN(const std::string program, ResolveProgram(argv[0]));
  return Run(options, argv, program).Execute();
}

absl::optional<int> MaybeLaunchSelf(int argc, char** argv, int nproc) {
  if (std::getenv("RANK") != nullptr) return absl::nullopt;
  std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.empty()) arguments.emplace_back();
  std::array<char, 4096> self;
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size());
  absl::StatusOr<LaunchResult> result = absl::InternalError("can't read /proc/self/exe");
  if (length > 0 && static_cast<size_t>(length) < self.size()) {
    arguments[0] = std::string(self.data(), length);
    LaunchOptions options;
    options.nproc_per_node = nproc;
    options.rank0_plain = true;
    result = Launch(arguments, options);
  }
  if (result.ok()) return result->exit_status;
  const std::string message = absl::StrCat("launcher: ", result.status().message(), "\n");
  [[maybe_unused]] const ssize_t written = write(2, message.data(), message.size());
  return result.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace ddpopt
