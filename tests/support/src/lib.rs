//! What the tests need of the outside: a real nats-server, started, stopped and restarted at will.
