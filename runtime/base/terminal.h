// Properties of standard output and standard error.
#pragma once

#include <cstdint>

namespace geopipe {

bool OutputIsTerminal();
bool ErrorIsTerminal();

// $COLUMNS where it is a number from 20 to 1000, else the terminal's width, else 80.
int32_t TerminalColumns();

// True when standard output is to be coloured: on a terminal, unless $NO_COLOR is set to anything or $TERM is dumb.
bool OutputInColour();

}  // namespace geopipe
