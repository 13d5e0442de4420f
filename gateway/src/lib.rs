//! Ports, header parsing, flow rules, Net-In and Net-Out.
