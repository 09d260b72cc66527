# What an installed m2n looks like: the shared library, the public headers, and two descriptions of
# them (CMake package, pkg-config). Internals are neither installed nor exported.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_compile_features(m2n PUBLIC cxx_std_20)

# The headers say the version, too; two answers would be worse than none.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/m2n/version.hpp version_lines REGEX "#define M2N_VERSION_")
string(REGEX REPLACE "[^;]*M2N_VERSION_[A-Z]+ ([0-9]+)" "\\1" version_numbers "${version_lines}")
string(REPLACE ";" "." header_version "${version_numbers}")
if(NOT header_version VERSION_EQUAL PROJECT_VERSION)
  message(FATAL_ERROR "include/m2n/version.hpp says ${header_version}, project() says ${PROJECT_VERSION}")
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/m2n)
install(TARGETS m2n EXPORT m2n_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT m2n_targets NAMESPACE m2n:: FILE m2nTargets.cmake DESTINATION ${package_dir}
        COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/m2nConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/package/m2nConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/m2nConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/m2nConfig.cmake
              ${PROJECT_BINARY_DIR}/package/m2nConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)

# The pkg-config file finds its prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/m2n.pc.in ${PROJECT_BINARY_DIR}/package/m2n.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/m2n.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)

foreach(tool m2n_perf m2n_info)
  if(TARGET ${tool})
    set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  endif()
endforeach()
