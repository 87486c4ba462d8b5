# Runs PROGRAM with ARGUMENTS; passes if it ends by itself with a status other than 0 and prints exactly one line, to standard
# error, that matches REGEX.
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE error)
if(NOT status MATCHES "^[1-9][0-9]*$")
  message(FATAL_ERROR "exit status '${status}', expected one from 1; printed: ${output}${error}")
endif()
if(NOT error MATCHES "${REGEX}")
  message(FATAL_ERROR "expected an error like '${REGEX}', got: ${error}")
endif()
if(NOT output STREQUAL "" OR NOT error MATCHES "^[^\n]*\n$")
  message(FATAL_ERROR "expected one line on standard error, got: ${output}${error}")
endif()
