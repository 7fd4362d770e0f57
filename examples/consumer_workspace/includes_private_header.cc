#include "ddpopt/ddp/frozen_reducer.h"

int main() { return 0; }
