/* The CUDA kernels that this build carries: one image per .cu file, as nvcc made it (a fatbin), to
 * be given to cuLibraryLoadData. */
#ifndef KVK_CUDA_IMAGES_H
#define KVK_CUDA_IMAGES_H

struct kvk_cuda_image {
    const char *name; /* of the file, without folder and ending */
    const unsigned char *begin, *end;
};

/* Ordered by name, and an entry without a name at the end. No image when the build had no CUDA
 * compiler. */
extern const struct kvk_cuda_image kvk_cuda_images[];
extern const unsigned kvk_cuda_image_count;

#endif
