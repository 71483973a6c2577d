// Ctrl-C: the first stops the generation, the second (before the next generation) quits.
#pragma once

namespace ef::cli {

void install_interrupt_handler();
/// Forgets earlier presses: called when a generation begins.
void arm_interrupt();
bool interrupted();

}  // namespace ef::cli
