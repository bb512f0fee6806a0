/* The public headers, each first in a file, twice: as C99 and as C++11 (see CMakeLists.txt). */
#include HEADER
#include HEADER

#ifdef __cplusplus
extern "C" {
#endif
int kvarn_header_alone(void);
int kvarn_header_alone(void)
{
    return 0;
}
#ifdef __cplusplus
}
#endif
