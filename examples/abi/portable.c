/* Portable code, compiled once. `-DSHIM` makes it call the library through the generated shim. */
#ifdef SHIM
#include "library_generic.h"
#else
#include "library.h"
#endif

static int seen(void *user, double value) { *(double *)user = value; return 0; }
static void visitor(big24 v, four_floats c, void *user) { seen(user, v.a + v.b + v.c + 10 * (c.x + c.y + c.z + c.w)); }
__attribute__((noinline)) static void poison(void) {
  volatile unsigned char junk[2048];
  for (int i = 0; i < 2048; i++) junk[i] = 0xA5;
}
int main(int argc, char **argv) {
  int which = argc > 1 ? argv[1][0] - 'a' : -1, bad = 0;
  big24 p = {1, 2, 3}, q = {4, 5, 6}; big40 r = {1, 2, 3, 4, 5}, s = {6, 7, 8, 9, 10};
  four_floats t = {1, 2, 3, 4}, u = {5, 6, 7, 8}; view v = {"A", 3}, w = {"B", 4};
  poison();
  if (which < 0 || which == 0) bad |= sum24(p, q) != 156;
  if (which < 0 || which == 1) bad |= 2 * (sum40(r, s) != 415);
  if (which < 0 || which == 2) bad |= 4 * (sum4(t, u) != 270);
  if (which < 0 || which == 3) bad |= 8 * (length(v, w) != 174);
  if (which < 0 || which == 4) { big40 m = make40(5); bad |= 16 * (m.a + m.e != 14); }
  if (which < 0 || which == 5) bad |= 32 * (plain(1, &p, 2.0) != 4);
  if (which < 0 || which == 6) { double got = 0; visit(visitor, &got); bad |= 64 * (got != 226); }
  return bad;
}
