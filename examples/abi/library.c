#include "library.h"
double sum24(big24 p, big24 q) { return p.a + p.b + p.c + 10 * (q.a + q.b + q.c); }
double sum40(big40 p, big40 q) { return p.a + p.b + p.c + p.d + p.e + 10 * (q.a + q.b + q.c + q.d + q.e); }
float sum4(four_floats p, four_floats q) { return p.x + p.y + p.z + p.w + 10 * (q.x + q.y + q.z + q.w); }
unsigned long long length(view a, view b) { return a.length + 10 * b.length + (unsigned char)a.data[0] + (unsigned char)b.data[0]; }
big40 make40(double first) { big40 r = {first, first + 1, first + 2, first + 3, first + 4}; return r; }
int plain(int a, void *p, double d) { return a + (p != 0) + (int)d; }
void visit(visit_fn fn, void *user) { big24 v = {1, 2, 3}; four_floats c = {4, 5, 6, 7}; fn(v, c, user); }
