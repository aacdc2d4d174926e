// SPDX-License-Identifier: MIT
// expect: neighbours in a row must lie 1 apart: copy it into a plain row-major matrix
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

using namespace gated_attention;

float top_left(MatrixView<const float> view) {
  return view(0, 0);
}
float use(const Eigen::Map<const Eigen::Matrix<float, 2, 2, Eigen::RowMajor>, 0,
                           Eigen::Stride<4, 2>>& matrix) {
  return top_left(matrix);
}
