# Warnings, sanitizers and the arithmetic rules every target of ours is built with.
add_library(kvarn_flags INTERFACE)
target_compile_options(
  kvarn_flags
  INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wall
            -Wextra
            -Wpedantic
            -Wconversion
            -Wshadow
            -Wstrict-prototypes
            -Wmissing-prototypes
            -Wpointer-arith
            -Wundef
            -Wvla
            -fno-strict-aliasing
            -ffp-contract=off>)
target_compile_definitions(kvarn_flags INTERFACE _GNU_SOURCE KVARN_VERSION="${PROJECT_VERSION}")
target_include_directories(kvarn_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/proto)
if(KVARN_WERROR)
  target_compile_options(kvarn_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(KVARN_SANITIZE)
  target_compile_options(kvarn_flags INTERFACE -fsanitize=${KVARN_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(kvarn_flags INTERFACE -fsanitize=${KVARN_SANITIZE})
endif()
if(KVARN_FUZZ)
  # Coverage counters everywhere; libFuzzer's main only in the targets of tests/fuzz.
  target_compile_options(kvarn_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(kvarn_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
