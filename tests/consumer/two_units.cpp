// SPDX-License-Identifier: MIT
// Runs the consumers' program as compiled in two translation units, one after the other.
int first_unit();
int second_unit();

int main() {
  const int first = first_unit();
  const int second = second_unit();
  return first != 0 ? first : second;
}
