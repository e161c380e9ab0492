"""A small trained world for tests: two targets, their language, and drafters of many wirings."""
