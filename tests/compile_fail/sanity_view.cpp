// SPDX-License-Identifier: MIT
// expect: success
// The correct neighbours of the misuses beside this file.
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

using namespace gated_attention;

float top_left(MatrixView<const float> view) {
  return view(0, 0);
}

float use(Eigen::Matrix<float, 2, 3, Eigen::RowMajor>& matrix, Eigen::VectorXf& vector,
          const Eigen::Map<const Eigen::Matrix<float, 2, 2, Eigen::RowMajor>, 0,
                           Eigen::OuterStride<>>& map) {
  return top_left(matrix) + top_left(matrix.block(0, 1, 2, 2)) + top_left(vector) + top_left(map) +
         top_left(matrix.row(1));
}
