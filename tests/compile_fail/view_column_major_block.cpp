// SPDX-License-Identifier: MIT
// expect: a matrix must be row-major
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

using namespace gated_attention;

float top_left(MatrixView<const float> view) {
  return view(0, 0);
}
float use(const Eigen::Block<Eigen::MatrixXf>& matrix) {
  return top_left(matrix);
}
