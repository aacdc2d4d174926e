# SPDX-License-Identifier: MIT
# The warnings the headers are held to, as the plain include they are for users.
option(GATED_ATTENTION_WERROR "Warnings are errors in tests, examples and benchmarks"
       ${PROJECT_IS_TOP_LEVEL})
set(gated_attention_warnings -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
                             -Wold-style-cast)

function(gated_attention_warn target)
  target_compile_options(${target} PRIVATE ${gated_attention_warnings}
                                           $<$<BOOL:${GATED_ATTENTION_WERROR}>:-Werror>)
endfunction()
