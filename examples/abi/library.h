/* A native library as many are: records by value, and a callback that is handed some. */
typedef struct { double a, b, c; } big24;
typedef struct { double a, b, c, d, e; } big40;
typedef struct { float x, y, z, w; } four_floats;
typedef struct { const char *data; unsigned long long length; } view;
typedef void (*visit_fn)(big24 value, four_floats colour, void *user);
double sum24(big24 p, big24 q);
double sum40(big40 p, big40 q);
float sum4(four_floats p, four_floats q);
unsigned long long length(view a, view b);
big40 make40(double first);
int plain(int a, void *p, double d);
void visit(visit_fn fn, void *user);
