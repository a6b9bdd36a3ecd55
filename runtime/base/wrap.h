// Text in lines of a given width. Widths are columns on the terminal, of UTF-8 text.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// No limit.
inline constexpr int32_t kAnyColumns = std::numeric_limits<int32_t>::max();

// Columns that `text` takes: two for each East Asian wide character, none for combining ones, else one.
int32_t DisplayWidth(std::string_view text);

// The widest piece of `text` that Wrap keeps together. Of a word of more than 24 columns that lists something with
// commas or slashes, the parts count.
int32_t WidestPiece(std::string_view text);

// `text`, without line feeds, in lines of at most `columns`, all but the first behind `indent` blanks. Breaks between
// words, but not between a number and its unit ("2.0 %", "25 × 1.91"); a word that is longer than a line is broken
// after a comma or slash, at worst anywhere. Blanks at the beginning stay. REQUIRES: columns > indent.
std::vector<std::string> Wrap(std::string_view text, int32_t columns, int32_t indent = 0);

// Every line of `text` that is too long, wrapped. Further lines hang behind the label where the line has one
// ("warning       the ..."), else two columns further in than the line.
std::string WrapLines(std::string_view text, int32_t columns);

}  // namespace geopipe
