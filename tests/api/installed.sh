#!/bin/sh
# usage: installed.sh BUILD SOURCE CC CMAKE: installs the client into a fresh prefix, then builds and links a program
# against it by pkg-config (shared and static) and by find_package, as a user would.
set -eu
build=$1 source=$2 cc=$3 cmake=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --component client --prefix "$work/prefix" >/dev/null
pc=$(dirname "$(find "$work/prefix" -name kvarn-client.pc)")
export PKG_CONFIG_PATH="$pc"
libdir=$(pkg-config --variable=libdir kvarn-client)
flags() { pkg-config "$@" kvarn-client; }
[ "$(cd "$libdir" && pwd)" = "$(cd "$pc/.." && pwd)" ] || { echo "libdir is $libdir, not the folder above $pc"; exit 1; }

"$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror $(flags --cflags) "$source/example.c" $(flags --libs) -o "$work/shared"
LD_LIBRARY_PATH="$libdir" "$work/shared"
"$cc" -std=c99 $(flags --cflags) "$source/example.c" "$libdir/libkvarn-client.a" \
    $(flags --static --libs-only-l | sed 's/-lkvarn-client//') -o "$work/static"
"$work/static"

mkdir "$work/user"
cat >"$work/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(kvarn-client 0.1 REQUIRED)
add_executable(user "$source/example.c")
target_link_libraries(user kvarn::kvarn-client)
END
"$cmake" -G Ninja -S "$work/user" -B "$work/user/b" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
"$cmake" --build "$work/user/b" >/dev/null
"$work/user/b/user"
echo "installed, linked three ways"
