// Several lambdas as one visitor of a variant.
#pragma once

namespace geopipe::agent {

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace geopipe::agent
