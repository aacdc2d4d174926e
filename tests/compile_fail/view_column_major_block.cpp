// SPDX-License-Identifier: MIT
// expect: a matrix must be row-major
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

namespace {

using namespace gated_attention;

float first(MatrixView<const float> view) {
  return view(0, 0);
}
float use(Eigen::Block<Eigen::MatrixXf> matrix) {
  return first(matrix);
}

}  // namespace
