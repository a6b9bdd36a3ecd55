// "did you mean": the known word nearest to an unknown one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace geopipe {

// The candidate with the least edit distance (insertions, deletions, substitutions) when it is near enough to be a
// slip of the finger, at most a third of the word; otherwise empty.
std::string NearestWord(std::string_view word, std::span<const std::string> candidates);

// "; did you mean --iterations?" or "", to be put behind an error. `decoration` is put in front of the word ("--").
std::string DidYouMean(std::string_view word, std::span<const std::string> candidates,
                       std::string_view decoration = "");

}  // namespace geopipe
