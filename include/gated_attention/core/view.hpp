// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>

#include "gated_attention/core/index.hpp"

namespace gated_attention {

namespace detail {

/// An object of Eigen's with storage of its own or of its user's: a matrix, a map, a block.
template <class Object>
concept DenseStorage = requires(Object& object) {
  typename std::remove_const_t<Object>::Scalar;
  { std::remove_const_t<Object>::IsRowMajor } -> std::convertible_to<bool>;
  object.data();
  object.rows();
  object.cols();
  object.outerStride();
  object.innerStride();
};

}  // namespace detail

/// A row-major matrix that somebody else owns: element (i, j) at data[i·row_stride + j].
///
/// Made from a pointer and extents, or from an Eigen matrix, map or block; never copies. A column-major object
/// does not compile; an inner stride other than 1 is a compile error, or a ShapeError where it is only known at run
/// time. As safe to share between threads as what it looks at.
template <class T>
class MatrixView {
 public:
  constexpr MatrixView() = default;

  constexpr MatrixView(T* data, Index rows, Index columns) : MatrixView(data, rows, columns, columns) {}

  constexpr MatrixView(T* data, Index rows, Index columns, Index row_stride)
      : data_(data), rows_(rows), columns_(columns), row_stride_(row_stride) {
    if (rows < 0 || columns < 0 || (rows > 1 && row_stride < columns))
      detail::raise<ShapeError>("MatrixView: ", rows, " rows of ", columns, " columns do not fit a row stride of ",
                                row_stride);
  }

  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr MatrixView(const MatrixView<U>& other)  // NOLINT: adding const is implicit
      : data_(other.data()),
        rows_(other.rows()),
        columns_(other.columns()),
        row_stride_(other.row_stride()) {}

  template <class Object>
    requires detail::DenseStorage<std::remove_reference_t<Object>>
  constexpr MatrixView(Object&& object)  // NOLINT: an Eigen object is a view where it is row-major
      : rows_(object.rows()), columns_(object.cols()) {
    using Dense = std::remove_cvref_t<Object>;
    constexpr bool the_object_is_row_major =
        Dense::IsRowMajor || Dense::RowsAtCompileTime == 1 || Dense::ColsAtCompileTime == 1;
    static_assert(the_object_is_row_major,
                  "gated_attention: a matrix must be row-major: declare it as Eigen::Matrix<Scalar, Eigen::Dynamic, "
                  "Eigen::Dynamic, Eigen::RowMajor>");
    constexpr bool the_scalars_agree = std::is_same_v<std::remove_const_t<T>, typename Dense::Scalar>;
    static_assert(the_scalars_agree,
                  "gated_attention: a view has the scalar type of its matrix: convert with .cast<Scalar>() first");
    constexpr bool neighbours_lie_together =
        Dense::InnerStrideAtCompileTime == 1 || Dense::InnerStrideAtCompileTime < 0 || !the_object_is_row_major;
    static_assert(neighbours_lie_together,
                  "gated_attention: neighbours in a row must lie 1 apart: copy it into a plain row-major matrix");
    if constexpr (the_scalars_agree) data_ = object.data();
    if (object.innerStride() != 1)
      detail::raise<ShapeError>("MatrixView: the inner stride is ", static_cast<Index>(object.innerStride()),
                                ", neighbours in a row must lie 1 apart");
    row_stride_ = Dense::IsRowMajor ? object.outerStride() : (columns_ == 1 ? 1 : columns_);
  }

  constexpr T* data() const { return data_; }
  constexpr Index rows() const { return rows_; }
  constexpr Index columns() const { return columns_; }
  constexpr Index row_stride() const { return row_stride_; }
  constexpr bool empty() const { return data_ == nullptr; }
  constexpr T* row(Index i) const { return data_ + i * row_stride_; }
  constexpr T& operator()(Index i, Index j) const { return data_[i * row_stride_ + j]; }

 private:
  T* data_ = nullptr;
  Index rows_ = 0;
  Index columns_ = 0;
  Index row_stride_ = 0;
};

/// Rows of heads that somebody else owns, as q, k, v and gate logits lie: [tokens, heads, width], channel c of head h
/// of token t at data[t·token_stride + h·head_stride + c]. Channels of a head are neighbours.
template <class T>
class HeadsView {
 public:
  constexpr HeadsView() = default;

  constexpr HeadsView(T* data, Index tokens, Index heads, Index width)
      : HeadsView(data, tokens, heads, width, heads * width, width) {}

  constexpr HeadsView(T* data, Index tokens, Index heads, Index width, Index token_stride, Index head_stride)
      : data_(data),
        tokens_(tokens),
        heads_(heads),
        width_(width),
        token_stride_(token_stride),
        head_stride_(head_stride) {
    if (tokens < 0 || heads < 0 || width < 0)
      detail::raise<ShapeError>("HeadsView: an extent is negative: ", tokens, " tokens, ", heads, " heads, width ",
                                width);
  }

  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr HeadsView(const HeadsView<U>& other)  // NOLINT: adding const is implicit
      : data_(other.data()),
        tokens_(other.tokens()),
        heads_(other.heads()),
        width_(other.width()),
        token_stride_(other.token_stride()),
        head_stride_(other.head_stride()) {}

  constexpr T* data() const { return data_; }
  constexpr Index tokens() const { return tokens_; }
  constexpr Index heads() const { return heads_; }
  constexpr Index width() const { return width_; }
  constexpr Index token_stride() const { return token_stride_; }
  constexpr Index head_stride() const { return head_stride_; }
  constexpr bool empty() const { return data_ == nullptr; }
  constexpr T* row(Index token, Index head) const {
    return data_ + token * token_stride_ + head * head_stride_;
  }
  constexpr T& operator()(Index token, Index head, Index channel) const { return row(token, head)[channel]; }

 private:
  T* data_ = nullptr;
  Index tokens_ = 0;
  Index heads_ = 0;
  Index width_ = 0;
  Index token_stride_ = 0;
  Index head_stride_ = 0;
};

}  // namespace gated_attention
