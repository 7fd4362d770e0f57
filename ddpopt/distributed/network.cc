#include "ddpopt/distributed/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace ddpopt {
namespace {

struct Address {
  std::string interface, text;
  bool up = false, loopback = false;
};

std::string Numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

socklen_t Length(const sockaddr* address) { return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

// Interfaces without an internet address have an entry with an empty text.
absl::StatusOr<std::vector<Address>> Addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return absl::UnavailableError(absl::StrCat("can't list this machine's network interfaces: ", std::strerror(errno)));
  std::vector<Address> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Address address;
    address.interface = entry->ifa_name;
    address.up = (entry->ifa_flags & IFF_UP) != 0;
    address.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    const sockaddr* socket_address = entry->ifa_addr;
    if (socket_address != nullptr && (socket_address->sa_family == AF_INET || socket_address->sa_family == AF_INET6)) {
      address.text = Numeric(socket_address, Length(socket_address));
    }
    result.push_back(std::move(address));
  }
  freeifaddrs(list);
  return result;
}

}  // namespace

absl::StatusOr<Network> ChooseNetwork(const std::string& master_addr, int master_port, const std::string& interfaces) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Addresses());
  Network network;
  if (!interfaces.empty()) {
    network.interfaces = absl::StrSplit(interfaces, ',', absl::SkipWhitespace());
    std::vector<std::string> names;
    network.loopback = true;
    for (const std::string& interface : network.interfaces) {
      const Address* found = nullptr;
      std::set<std::string> known;
      for (const Address& address : addresses) {
        known.insert(address.interface);
        if (address.interface == interface && (found == nullptr || found->text.empty())) found = &address;
      }
      const std::string context = absl::StrCat("GLOO_SOCKET_IFNAME=", interfaces, ": ");
      if (found == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(context, "this machine has no interface '", interface, "'; it has ", absl::StrJoin(known, ", ")));
      }
      if (!found->up) return absl::InvalidArgumentError(absl::StrCat(context, "interface '", interface, "' is down"));
      if (found->text.empty()) return absl::InvalidArgumentError(absl::StrCat(context, "interface '", interface, "' has no address"));
      names.push_back(absl::StrCat(interface, " (", found->text, ")"));
      network.loopback = network.loopback && found->loopback;
      if (network.address.empty()) network.address = found->text;
    }
    network.name = absl::StrJoin(names, ", ");
    return network;
  }

  const std::string context = absl::StrCat("MASTER_ADDR=", master_addr);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* resolved = nullptr;
  if (const int error = getaddrinfo(master_addr.c_str(), std::to_string(master_port).c_str(), &hints, &resolved); error != 0) {
    return absl::UnavailableError(
        absl::StrCat(context, " doesn't resolve to an address: ", error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free_resolved(resolved, &freeaddrinfo);
  // Connecting a datagram socket sends nothing, and binds it to the address from which the kernel would send.
  int error = 0;
  for (const addrinfo* candidate = resolved; candidate != nullptr && network.address.empty(); candidate = candidate->ai_next) {
    const int fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    if (fd >= 0 && connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      network.address = Numeric(reinterpret_cast<const sockaddr*>(&own), length);
    } else {
      error = errno;
    }
    if (fd >= 0) close(fd);
  }
  if (network.address.empty()) {
    return absl::UnavailableError(
        absl::StrCat(context, ": this machine has no way to it: ", std::strerror(error), "; GLOO_SOCKET_IFNAME names an interface"));
  }
  network.name = network.address;
  for (const Address& address : addresses) {
    if (address.text != network.address) continue;
    network.name = absl::StrCat(address.interface, " (", address.text, ")");
    network.loopback = address.loopback;
  }
  // 127.0.0.2 and the like belong to no entry.
  if (network.address.rfind("127.", 0) == 0) network.loopback = true;
  return network;
}

}  // namespace ddpopt
