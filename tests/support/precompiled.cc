// Holds the precompiled header that all tests share; see tests/CMakeLists.txt.
#include <catch2/catch.hpp>
