// Exports the size of an argument struct, which the Python side compares with its own description when it loads the
// library (`native/library.py: check_layout`).
#pragma once
#include <cstdint>

#define EXPORT_SIZE(Struct) \
  extern "C" int64_t sizeof_##Struct() { return sizeof(Struct); }
