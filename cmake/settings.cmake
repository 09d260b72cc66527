# Options, compiler settings and the libraries that every part may use.
option(M2N_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(M2N_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(M2N_BUILD_PERF "Build m2n_perf and m2n_info" ${PROJECT_IS_TOP_LEVEL})
set(M2N_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

# Exact numbers: no contraction, no fast math; explicit fma only.
add_library(m2n_warnings INTERFACE)
target_compile_options(m2n_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                              -ffp-contract=off)
if(M2N_WARNINGS_AS_ERRORS)
  target_compile_options(m2n_warnings INTERFACE -Werror)
endif()
if(M2N_SANITIZE)
  add_compile_options(-fsanitize=${M2N_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${M2N_SANITIZE})
endif()
