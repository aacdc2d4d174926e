// SPDX-License-Identifier: MIT
// expect: a view has the scalar type of its matrix: convert with .cast<Scalar>() first
#include <Eigen/Core>

#include "gated_attention/core/view.hpp"

using namespace gated_attention;

float top_left(MatrixView<const float> view) {
  return view(0, 0);
}
float use(const Eigen::Matrix<double, 2, 2, Eigen::RowMajor>& matrix) {
  return top_left(matrix);
}
