# The first ```cpp block of README.md, as a program: what a new user copies has to compile and be
# right. And short: whoever reads it decides there whether to read on.
file(READ ${PROJECT_SOURCE_DIR}/README.md readme_text)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md)
set(readme_fence "```cpp\n")
string(FIND "${readme_text}" "${readme_fence}" readme_begin)
if(readme_begin EQUAL -1)
  message(FATAL_ERROR "README.md has no block that starts with ```cpp")
endif()
string(LENGTH "${readme_fence}" readme_fence_length)
math(EXPR readme_begin "${readme_begin} + ${readme_fence_length}")
string(SUBSTRING "${readme_text}" ${readme_begin} -1 readme_code)
string(FIND "${readme_code}" "\n```" readme_end)
string(SUBSTRING "${readme_code}" 0 ${readme_end} readme_code)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/readme_example.cpp CONTENT "${readme_code}\n" @ONLY)

set(readme_most_lines 22)
string(REGEX REPLACE "[^\n]+" "line" readme_lines "${readme_code}")  # a list must hold no ; or [
string(REGEX MATCHALL "line" readme_lines "${readme_lines}")
list(LENGTH readme_lines readme_line_count)
if(readme_line_count GREATER readme_most_lines)
  message(FATAL_ERROR "README.md: the program has ${readme_line_count} lines of code, allowed: ${readme_most_lines}")
endif()
