"""One engine step and what surrounds it: request, scheduler, model runner, output processor, and the two front ends."""
