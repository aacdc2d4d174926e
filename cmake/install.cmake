# SPDX-License-Identifier: MIT
# Headers, the CMake package (share/cmake/gated_attention) and the pkg-config file (share/pkgconfig): nothing in
# them depends on the machine or on where they are put.
include(CMakePackageConfigHelpers)
set(package_dir share/cmake/gated_attention)

install(TARGETS gated_attention gated_attention_serial EXPORT gated_attention_targets
        FILE_SET HEADERS DESTINATION include)
install(EXPORT gated_attention_targets NAMESPACE gated_attention:: DESTINATION ${package_dir}
        FILE gated_attentionTargets.cmake)
if(TARGET gated_attention_io)
  install(TARGETS gated_attention_io EXPORT gated_attention_io_targets FILE_SET HEADERS DESTINATION include)
  install(EXPORT gated_attention_io_targets NAMESPACE gated_attention:: DESTINATION ${package_dir}
          FILE gated_attentionIoTargets.cmake)
endif()

set(package_binary_dir ${PROJECT_BINARY_DIR}/package)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gated_attentionConfig.cmake.in
                              ${package_binary_dir}/gated_attentionConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${package_binary_dir}/gated_attentionConfigVersion.cmake VERSION ${PROJECT_VERSION}
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
configure_file(${PROJECT_SOURCE_DIR}/cmake/gated_attention.pc.in
               ${package_binary_dir}/gated_attention.pc @ONLY)
install(FILES ${package_binary_dir}/gated_attentionConfig.cmake
              ${package_binary_dir}/gated_attentionConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES ${package_binary_dir}/gated_attention.pc DESTINATION share/pkgconfig)
