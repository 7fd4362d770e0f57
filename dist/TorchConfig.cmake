# LibTorch for programs that use the CPU alone, where find_package(Torch) would ask for a CUDA toolkit because LibTorch is a CUDA build
# (the wheels are). It links libtorch_cpu and libc10 only.
#
#   cmake -DTorch_DIR=<this folder> -DLIBTORCH_HOME=<unpacked LibTorch, with include/ and lib/> ...
if(NOT LIBTORCH_HOME)
  set(LIBTORCH_HOME "$ENV{LIBTORCH_HOME}")
endif()
if(NOT EXISTS "${LIBTORCH_HOME}/lib/libtorch_cpu.so")
  set(Torch_FOUND FALSE)
  set(Torch_NOT_FOUND_MESSAGE "LIBTORCH_HOME=\"${LIBTORCH_HOME}\" must be an unpacked LibTorch (there is no lib/libtorch_cpu.so)")
  return()
endif()

set(TORCH_INCLUDE_DIRS "${LIBTORCH_HOME}/include" "${LIBTORCH_HOME}/include/torch/csrc/api/include")
foreach(_torch_library IN ITEMS c10 torch_cpu)
  if(NOT TARGET ${_torch_library})
    add_library(${_torch_library} SHARED IMPORTED)
    set_target_properties(${_torch_library} PROPERTIES
      IMPORTED_LOCATION "${LIBTORCH_HOME}/lib/lib${_torch_library}.so"
      IMPORTED_SONAME "lib${_torch_library}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}")
  endif()
endforeach()
if(NOT TARGET torch)
  add_library(torch INTERFACE IMPORTED)
  set_target_properties(torch PROPERTIES INTERFACE_LINK_LIBRARIES "torch_cpu;c10")
  # libtorch_cpu knows where its own libraries lie; the linker need not.
  set_property(TARGET torch PROPERTY INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
set(TORCH_LIBRARIES torch)
set(TORCH_CXX_FLAGS "")
set(Torch_FOUND TRUE)
set(TORCH_FOUND TRUE)
