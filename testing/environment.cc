#include "testing/environment.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace ddpopt::testing {

int FreePort(int* keep) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no free port");
  }
  if (keep != nullptr) {
    listen(fd, 1);
    *keep = fd;
  } else {
    close(fd);
  }
  return ntohs(address.sin_port);
}

void SetEnvironmentOfOneRank() {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(FreePort()).c_str(), 1);
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("LOCAL_RANK", "0", 1);
}

std::string NoCudaReason() {
  const char* required = std::getenv("DDPOPT_REQUIRE_CUDA");
  if (required != nullptr && std::string(required) == "1") return "";
#ifndef DDPOPT_CONFIG_CUDA
  return "needs a build with --config=cuda";
#else
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "needs a GPU: there is no NVIDIA driver (libcuda.so.1)";
  dlclose(driver);
  return "";
#endif
}

}  // namespace ddpopt::testing
