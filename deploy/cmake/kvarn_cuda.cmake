# CUDA kernels: nvcc makes one image of each .cu, and all of them are embedded in one library. The host
# side of the GPU backend is plain C, always built, and linked to nothing of CUDA; KVARN_CUDA decides
# only whether there are kernels in it. CMake's own CUDA language is not used: it wants the CUDA runtime.
#
#   KVARN_CUDA        AUTO: build the kernels if a CUDA compiler works; ON: it must; OFF: do not look
#   KVARN_CUDA_ARCH   as CMAKE_CUDA_ARCHITECTURES: 90a-real, 90-virtual, ...
#   KVARN_CUDA_FLAGS  more options for nvcc, e.g. "-Xptxas;-v"
#   KVARN_NVCC        the compiler; looked for in $CUDACXX, $CUDA_HOME, PATH, where install-deps.sh --cuda puts it,
#                     and /usr/local/cuda
set(KVARN_CUDA_ARCH "90a-real" CACHE STRING "GPU architectures to build kernels for")
set(KVARN_CUDA_FLAGS "" CACHE STRING "More options for nvcc")
set(kvarn_nvcc_min 13.0)

# Options for each architecture: machine code, PTX, or (no suffix) both.
set(kvarn_nvcc_arch "")
foreach(arch ${KVARN_CUDA_ARCH})
  string(REGEX MATCH "^([0-9]+[af]?)(-real|-virtual|)$" matched "${arch}")
  if(NOT matched)
    message(FATAL_ERROR "KVARN_CUDA_ARCH: '${arch}' is not like 90a-real, 90-virtual or 90")
  endif()
  set(number ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_2 STREQUAL "-real")
    set(codes sm_${number})
  elseif(CMAKE_MATCH_2 STREQUAL "-virtual")
    set(codes compute_${number})
  else()
    set(codes [sm_${number},compute_${number}])
  endif()
  list(APPEND kvarn_nvcc_arch -gencode=arch=compute_${number},code=${codes})
endforeach()
set(kvarn_nvcc_flags -fatbin -O3 -std=c++17 ${kvarn_nvcc_arch} -Werror all-warnings -Xcompiler -Wall,-Wextra
                     ${KVARN_CUDA_FLAGS})

# Sets why to what keeps the kernels from being built, or to nothing. An nvcc that is there but cannot
# compile (no g++, half of it missing) is found out here and not in the middle of the build.
function(kvarn_check_nvcc why)
  set(${why} "" PARENT_SCOPE)
  if(DEFINED ENV{CUDACXX})
    set(KVARN_NVCC $ENV{CUDACXX} CACHE FILEPATH "CUDA compiler")
  endif()
  find_program(KVARN_NVCC nvcc HINTS ENV CUDA_HOME PATHS ${PROJECT_SOURCE_DIR}/.venv/cuda /usr/local/cuda
               PATH_SUFFIXES bin DOC "CUDA compiler")
  mark_as_advanced(KVARN_NVCC)
  if(NOT KVARN_NVCC)
    set(${why} "no CUDA compiler (nvcc) was found" PARENT_SCOPE)
    return()
  endif()
  set(seen "${KVARN_NVCC} ${kvarn_nvcc_flags}")
  if(KVARN_NVCC_SEEN STREQUAL seen)
    return()
  endif()
  execute_process(COMMAND ${KVARN_NVCC} --version OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX MATCH "release ([0-9.]+)" matched "${text}")
  if(NOT matched OR CMAKE_MATCH_1 VERSION_LESS kvarn_nvcc_min)
    set(${why} "${KVARN_NVCC} is not nvcc ${kvarn_nvcc_min} or later" PARENT_SCOPE)
    return()
  endif()
  set(trial ${CMAKE_BINARY_DIR}/CMakeFiles/kvarn_cuda_trial)
  file(WRITE ${trial}.cu "#include <cuda_fp16.h>\nextern \"C\" __global__ void trial(__half *x) { *x = __half(1.0f); }\n")
  execute_process(COMMAND ${KVARN_NVCC} ${kvarn_nvcc_flags} -o ${trial}.fatbin ${trial}.cu
                  RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    string(STRIP "${text}" text)
    set(${why} "${KVARN_NVCC} does not compile a trial kernel: ${text}" PARENT_SCOPE)
    return()
  endif()
  set(KVARN_NVCC_SEEN "${seen}" CACHE INTERNAL "compiler and options that compiled a trial kernel")
endfunction()

if(KVARN_CUDA STREQUAL "OFF")
  set(kvarn_cuda_why "KVARN_CUDA=OFF")
else()
  kvarn_check_nvcc(kvarn_cuda_why)
endif()
if(NOT kvarn_cuda_why)
  set(KVARN_CUDA_KERNELS ON)
  message(STATUS "kvarnd: CUDA kernels for ${KVARN_CUDA_ARCH} by ${KVARN_NVCC}")
elseif(KVARN_CUDA STREQUAL "ON")
  message(FATAL_ERROR "KVARN_CUDA=ON: ${kvarn_cuda_why}; deploy/install-deps.sh --cuda brings a compiler")
else()
  set(KVARN_CUDA_KERNELS OFF)
  message(STATUS "kvarnd: no CUDA kernels, GPU pools are refused (${kvarn_cuda_why})")
endif()

# kvarn_cuda_images(<target> SOURCES FILE.cu ...): a library with the table of kernels/cuda/images.h, in the
# order given, named as the files are; an empty table where kernels are not built.
function(kvarn_cuda_images target)
  cmake_parse_arguments(T "" "" "SOURCES" ${ARGN})
  set(incbins "")
  set(entries "")
  set(fatbins "")
  set(count 0)
  if(KVARN_CUDA_KERNELS)
    foreach(source ${T_SOURCES})
      cmake_path(GET source STEM name)
      set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
      add_custom_command(
        OUTPUT ${fatbin}
        COMMAND ${KVARN_NVCC} ${kvarn_nvcc_flags} -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/proto -MD -MF
                ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${source}
        DEPENDS ${source}
        DEPFILE ${fatbin}.d
        COMMENT "Building CUDA image ${name}"
        VERBATIM)
      list(APPEND fatbins ${fatbin})
      string(APPEND incbins "EMBED(kvk_cuda_image_${count}, \"${fatbin}\");\n")
      string(APPEND entries "    {\"${name}\", kvk_cuda_image_${count}_begin, kvk_cuda_image_${count}_end},\n")
      math(EXPR count "${count} + 1")
    endforeach()
  endif()
  set(table ${CMAKE_CURRENT_BINARY_DIR}/${target}.c)
  configure_file(${PROJECT_SOURCE_DIR}/kernels/cuda/images.c.in ${table} @ONLY)
  set_source_files_properties(${table} PROPERTIES OBJECT_DEPENDS "${fatbins}")
  # also as an object, for who wants it in a shared library: the table is seen outside of that
  add_library(${target}_object OBJECT ${table})
  target_link_libraries(${target}_object PRIVATE kvarn_flags)
  set_target_properties(${target}_object PROPERTIES C_VISIBILITY_PRESET default)
  add_library(${target} STATIC $<TARGET_OBJECTS:${target}_object>)
  target_link_libraries(${target} PUBLIC kvarn_flags)
  set_target_properties(${target} PROPERTIES KVARN_IMAGES ${count})
endfunction()
