// Properties of standard output and standard error.
#pragma once

#include <cstdint>

namespace geopipe {

bool OutputIsTerminal();
bool ErrorIsTerminal();
// True when a line on standard error can be written over: on a terminal, unless $TERM is dumb.
bool ErrorTakesControl();

// Width of a drawing on standard output: $COLUMNS where it is a number from 20 to 1000, else the terminal's width, else
// 80.
int32_t TerminalColumns();

// Width of tables and sentences on standard output: the same, but unlimited (kAnyColumns of runtime/base/wrap.h) where
// there is neither $COLUMNS nor a terminal, so that a program that reads them finds one record in one line.
int32_t TextColumns();

// True when standard output is to be coloured: on a terminal, unless $NO_COLOR is set to anything or $TERM is dumb.
bool OutputInColour();

}  // namespace geopipe
