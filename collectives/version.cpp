// The version of the library that is loaded, which may differ from the headers a user compiled
// with.
#include "m2n/version.hpp"

namespace m2n {
namespace {

#define M2N_TEXT_OF(x) #x
#define M2N_TEXT(x) M2N_TEXT_OF(x)
constexpr const char* text =
    M2N_TEXT(M2N_VERSION_MAJOR) "." M2N_TEXT(M2N_VERSION_MINOR) "." M2N_TEXT(M2N_VERSION_PATCH);

}  // namespace

const char* version() noexcept {
  return text;
}

}  // namespace m2n
