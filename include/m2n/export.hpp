// Marks what the shared library shows to its users.
#pragma once

#define M2N_EXPORT __attribute__((visibility("default")))
