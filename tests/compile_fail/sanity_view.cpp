// SPDX-License-Identifier: MIT
// expect: success
// The correct neighbours of the misuses beside this file.
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

namespace {

using namespace gated_attention;

float first(MatrixView<const float> view) {
  return view(0, 0);
}

float use(Eigen::Matrix<float, 2, 3, Eigen::RowMajor>& matrix, Eigen::VectorXf& vector,
          const Eigen::Map<const Eigen::Matrix<float, 2, 2, Eigen::RowMajor>, 0,
                           Eigen::OuterStride<>>& map) {
  return first(matrix) + first(matrix.block(0, 1, 2, 2)) + first(vector) + first(map) +
         first(matrix.row(1));
}

}  // namespace
